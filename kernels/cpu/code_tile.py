"""Products with weights that stay e2m1 codes until they are multiplied, for processors with 512-bit vectors.

A table of sixteen values fits one vector there, so that a permutation decodes sixteen codes at once, and a
product with the scale of their group, a power of two, is exact. What is multiplied is therefore the very
weight that bfloat16 would hold, at a quarter of the bytes: few rows wait for weights, not for arithmetic.
The chains are those of ``fma_tile``.

A panel of depth K, a multiple of GROUP, is ``panel_bytes(K)`` long: uint32 [K / 8, PANEL], the codes of
eight inputs k from the lowest bits on, then uint8 [K / GROUP, PANEL], the exponents of scales as float32
stores them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types

from deepinfer.kernels.cpu.compiled import emitted, inlined
from deepinfer.kernels.cpu.fma_tile import AHEAD, PANEL, VECTOR, broadcast, prefetch, vector_fma

TAKES_CODES = VECTOR == 16
"""Whether this processor has the vectors for it."""
GROUP = 32
"""Inputs that share a scale."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of a code stand for; the fourth one is the sign."""
CodeTile = Callable[..., None]
"""``tile(rows, b, depth, out, out_stride)``, integers all; see ``make_code_tile``."""

_LANES, _CODES = 16, 8
_SLOWER = 4
"""Codes take more work a byte, so they are asked for less far ahead."""
_FLOAT, _I8, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR, _WORDS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_I32, _LANES)
_ACROSS = PANEL // _LANES
_VALUES = ir.Constant(_VECTOR, [*MAGNITUDES, *(-value for value in MAGNITUDES)])


@inlined
def panel_bytes(depth: int) -> int:
    """Bytes of a panel."""
    return depth * PANEL // 2 + depth // GROUP * PANEL


def _number(value: int) -> ir.Value:
    return ir.Constant(_I64, value)


def _words(value: int) -> ir.Value:
    return ir.Constant(_WORDS, [value] * _LANES)


def _loaded(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    value = builder.load(builder.inttoptr(address, ir.VectorType(kind, _LANES).as_pointer()))
    value.align = 1
    return value


def _scales(builder: ir.IRBuilder, address: ir.Value) -> list[ir.Value]:
    """Those of one group and panel."""
    found = []
    for v in range(_ACROSS):
        exponents = builder.zext(_loaded(builder, builder.add(address, _number(_LANES * v)), _I8), _WORDS)
        found.append(builder.bitcast(builder.shl(exponents, _words(23)), _VECTOR))
    return found


def _weights(
    builder: ir.IRBuilder, codes: list[ir.Value], scales: list[ir.Value], place: int
) -> list[ir.Value]:
    """Weights of the input that is number ``place`` of eight; a permutation reads four bits of each lane."""
    declare: Any = cgutils.get_or_insert_function
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _WORDS])
    permuted = declare(builder.module, kind, "llvm.x86.avx512.permvar.sf.512")
    found = []
    for mine, scale in zip(codes, scales, strict=True):
        index = builder.lshr(mine, _words(4 * place)) if place else mine
        found.append(builder.fmul(builder.call(permuted, [_VALUES, index]), scale))
    return found


def _walk(
    builder: ir.IRBuilder,
    panels: list[ir.Value],
    depth: ir.Value,
    num_sums: int,
    step: Callable[[ir.Value, list[ir.Value], list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """``sums = step(k, weights of input k, sums)`` over ascending k, from zeros on.

    A loop over groups around one over eights of their inputs. ``weights`` go panel by panel.
    """
    zero = ir.Constant(_VECTOR, [0.0] * _LANES)
    code_bytes = builder.mul(depth, _number(PANEL // 2))
    entry = builder.block
    outer, inner = builder.append_basic_block("group"), builder.append_basic_block("eight")
    latch, done = builder.append_basic_block("next"), builder.append_basic_block("done")
    builder.branch(outer)

    builder.position_at_end(outer)
    first = builder.phi(_I64)
    outer_sums = [builder.phi(_VECTOR) for _ in range(num_sums)]
    scales, skipped = list[ir.Value](), builder.mul(first, _number(PANEL // GROUP))
    for panel in panels:
        scales += _scales(builder, builder.add(builder.add(panel, code_bytes), skipped))
    builder.branch(inner)

    builder.position_at_end(inner)
    eight = builder.phi(_I64)
    sums = [builder.phi(_VECTOR) for _ in range(num_sums)]
    following, codes = list[ir.Value](sums), list[ir.Value]()
    skipped = builder.mul(eight, _number(PANEL // 2))
    for panel in panels:
        for v in range(_ACROSS):
            place = builder.add(builder.add(panel, skipped), _number(4 * _LANES * v))
            codes.append(_loaded(builder, place, _I32))
            prefetch(builder, builder.add(place, _number(AHEAD // _SLOWER)))
    for place in range(_CODES):
        k = builder.add(eight, _number(place))
        following = step(k, _weights(builder, codes, scales, place), following)
    eight_next = builder.add(eight, _number(_CODES))
    first_next = builder.add(first, _number(GROUP))
    builder.cbranch(builder.icmp_signed("<", eight_next, first_next), inner, latch)

    builder.position_at_end(latch)
    builder.cbranch(builder.icmp_signed("<", first_next, depth), outer, done)
    first.add_incoming(_number(0), entry)
    first.add_incoming(first_next, latch)
    eight.add_incoming(first, outer)
    eight.add_incoming(eight_next, inner)
    for before, phi, after in zip(outer_sums, sums, following, strict=True):
        before.add_incoming(zero, entry)
        before.add_incoming(after, latch)
        phi.add_incoming(before, outer)
        phi.add_incoming(after, inner)
    builder.position_at_end(done)
    return following


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, builder.inttoptr(address, _VECTOR.as_pointer())).align = 4


def make_code_tile(num_rows: int, num_panels: int) -> CodeTile:
    """Build ``tile(rows, b, depth, out, out_stride)``: rows times panels of codes that follow each other.

    ``rows`` is the address of ``num_rows`` int64 addresses of float32 rows, ``b`` that of the first panel,
    ``depth`` K, at least GROUP, ``out`` the address of the first result and ``out_stride`` the distance of
    its rows in elements.
    """
    across = num_panels * _ACROSS

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        rows, b, depth, out, out_stride = args
        size = builder.mul(depth, _number(PANEL // 2 + PANEL // GROUP))
        panels = [builder.add(b, builder.mul(size, _number(p))) for p in range(num_panels)]
        table = builder.inttoptr(rows, _I64.as_pointer())
        pointers = [
            builder.inttoptr(builder.load(builder.gep(table, [_number(r)])), _FLOAT.as_pointer())
            for r in range(num_rows)
        ]

        def step(k: ir.Value, weights: list[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
            found = []
            for r, pointer in enumerate(pointers):
                a = broadcast(builder, builder.load(builder.gep(pointer, [k])), _LANES)
                mine = sums[r * across : (r + 1) * across]
                found += [vector_fma(builder, a, w, s) for w, s in zip(weights, mine, strict=True)]
            return found

        found = _walk(builder, panels, depth, num_rows * across, step)
        for number, value in enumerate(found):
            r, v = divmod(number, across)
            row = builder.add(out, builder.mul(out_stride, _number(4 * r)))
            _store(builder, value, builder.add(row, _number(4 * _LANES * v)))
        return context.get_dummy_value()

    @emitted
    def tile(typingctx: Any, rows: Any, b: Any, depth: Any, out: Any, out_stride: Any) -> Any:
        return types.void(*[types.int64] * 5), codegen

    return cast(CodeTile, tile)


def make_decode() -> CodeTile:
    """Build ``decode(b, depth, out)``: one panel of codes at ``b`` as float32 [K, PANEL] at ``out``."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        b, depth, out = args

        def step(k: ir.Value, weights: list[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
            row = builder.add(out, builder.mul(k, _number(4 * PANEL)))
            for v, weight in enumerate(weights):
                _store(builder, weight, builder.add(row, _number(4 * _LANES * v)))
            return sums

        _walk(builder, [b], depth, 0, step)
        return context.get_dummy_value()

    @emitted
    def decode(typingctx: Any, b: Any, depth: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 3), codegen

    return cast(CodeTile, decode)
