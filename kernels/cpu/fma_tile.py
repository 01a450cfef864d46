"""The inner loop of every strict matrix product: one fma chain per output, written as LLVM vector code.

``out[r, n] = fma(a[r, K-1], b[K-1, n], ... fma(a[r, 0], b[0, n], +0))``: k ascending from zero, one rounding
per step. Vectors run over output columns and tiles over rows, so a chain is never split, and its value
depends on neither the tile nor the vector width. numba keeps local arrays in memory, which costs two thirds
of the speed; as LLVM values the accumulators stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types

from deepinfer.kernels.cpu.compiled import emitted

Tile = Callable[..., None]
"""``tile(rows, b, b_stride, depth, out, out_stride)``, integers all; see ``make_tile``."""

_FLOAT = ir.FloatType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def _has_avx512() -> bool:
    """Whether the compilation target has 512-bit vectors and 32 registers (``NUMBA_CPU_*`` respected)."""
    from numba.core import config

    features = config.CPU_FEATURES  # type: ignore[attr-defined]
    if features is None and config.CPU_NAME is None:  # type: ignore[attr-defined]
        features = llvm.get_host_cpu_features().flatten()
    name = config.CPU_NAME or ""  # type: ignore[attr-defined]
    return "+avx512f" in (features or "") or "avx512" in name


VECTOR = 16 if _has_avx512() else 8
"""Lanes of one vector."""
PANEL = 2 * VECTOR
"""Output columns of one tile, and the width of a packed weight panel."""
TILE_ROWS = 12 if VECTOR == 16 else 6
"""Rows of the large tile: with two vectors a row it fills the register file (24 of 32, or 12 of 16)."""
ROW_PANELS = 4
"""Panels that one row passes over at a time: eight chains hide the latency of an fma."""
AHEAD = 2048
"""Bytes of weights from where a few rows are to where they ask for more; see ``prefetch``."""
_LINE = 64
"""Bytes of a cache line."""
FEW_TILES = ((3, 2), (3, 2), (6, 1), (6, 1)) if VECTOR == 16 else ((2, 2), (3, 1), (4, 1), (5, 1))
"""Rows and panels of the tiles for two, three, four and five rows: what the register file holds."""


def vector_fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """``a * b + c`` of vectors, lane by lane."""
    vector = a.type
    function_type = ir.FunctionType(vector, [vector, vector, vector])
    declare: Any = cgutils.get_or_insert_function
    function = declare(builder.module, function_type, f"llvm.fma.v{vector.count}f32")
    return builder.call(function, [a, b, c])


def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for the cache line at ``address``, which may lie anywhere.

    Few rows wait for weights that lie outside the caches of a core, and processors that look ahead by
    themselves stop at every page of 4 KB.
    """
    octet: Any = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [octet, _I32, _I32, _I32])
    declare: Any = cgutils.get_or_insert_function
    function = declare(builder.module, kind, "llvm.prefetch.p0i8")
    reads, stays, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
    builder.call(function, [builder.inttoptr(address, octet), reads, stays, data])


def broadcast(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    """``scalar`` in all lanes."""
    vector = ir.VectorType(_FLOAT, lanes)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), mask)


def make_tile(
    num_rows: int,
    num_vectors: int = 2,
    lanes: int = VECTOR,
    gathered: bool = False,
    num_panels: int = 1,
    half: bool = False,
) -> Tile:
    """Build ``tile(rows, b, b_stride, depth, out, out_stride)``.

    It computes ``num_rows`` rows of ``num_panels`` panels of ``num_vectors * lanes`` columns. Panel p of
    ``b`` begins ``p * depth * b_stride`` elements after the first, its columns of ``out`` come next.
    With ``half``, ``b`` holds bfloat16, which is a float32 without its lower sixteen bits; of two vectors of
    columns the first values alternate with those of the second.

    All arguments are integers: ``rows`` the address of ``num_rows`` int64 addresses of float32 rows ``a[r]``;
    ``b`` the address of float32 ``b[0, 0]`` and ``b_stride`` the distance of its rows in elements; ``depth``
    is K; ``out`` the address of float32 ``out[0, 0]`` and ``out_stride`` the distance of its rows in
    elements; overwritten. With ``gathered`` the rows of ``b`` lie anywhere: ``b`` is the address of K int64
    row addresses, and ``b_stride`` the first column.
    """
    vector, across = ir.VectorType(_FLOAT, lanes), num_panels * num_vectors

    size, is_few = 2 if half else 4, num_rows < TILE_ROWS and not gathered
    lines = range(0, num_vectors * lanes * size, _LINE)

    def load(builder: ir.IRBuilder, address: ir.Value) -> list[ir.Value]:
        """The columns of one row of a panel; two vectors of bfloat16 take one load and an operation each."""
        if not half:
            places = [builder.add(address, ir.Constant(_I64, 4 * lanes * v)) for v in range(num_vectors)]
            found = [builder.load(builder.inttoptr(place, vector.as_pointer())) for place in places]
            for value in found:
                value.align = 4
            return found
        words, found = ir.VectorType(_I32, lanes), []
        for v in range(0, num_vectors, 2):
            place = builder.add(address, ir.Constant(_I64, 2 * lanes * v))
            both = builder.load(builder.inttoptr(place, words.as_pointer()))
            both.align = 2
            first = builder.shl(both, ir.Constant(words, [16] * lanes))
            second = builder.and_(both, ir.Constant(words, [-65536] * lanes))
            found += [builder.bitcast(part, vector) for part in (first, second)]
        return found

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        rows, b, b_stride, depth, out, out_stride = args
        four, item = ir.Constant(_I64, 4), ir.Constant(_I64, size)
        panel_bytes = builder.mul(builder.mul(depth, b_stride), item)
        distances = [builder.mul(panel_bytes, ir.Constant(_I64, p)) for p in range(1, num_panels)]
        table = builder.inttoptr(rows, _I64.as_pointer())
        row_pointers = [
            builder.inttoptr(builder.load(builder.gep(table, [ir.Constant(_I64, r)])), _FLOAT.as_pointer())
            for r in range(num_rows)
        ]
        first_column = builder.mul(b_stride, item)
        step = ir.Constant(_I64, 8) if gathered else first_column
        entry = builder.block
        loop = builder.append_basic_block("chain")
        done = builder.append_basic_block("done")
        zero = ir.Constant(vector, [0.0] * lanes)
        builder.cbranch(builder.icmp_signed(">", depth, ir.Constant(_I64, 0)), loop, done)

        builder.position_at_end(loop)
        k = builder.phi(_I64)
        address = builder.phi(_I64)
        sums = [[builder.phi(vector) for _ in range(across)] for _ in range(num_rows)]
        k.add_incoming(ir.Constant(_I64, 0), entry)
        address.add_incoming(b, entry)
        start = address
        if gathered:
            start = builder.add(builder.load(builder.inttoptr(address, _I64.as_pointer())), first_column)
        columns = list[ir.Value]()
        for panel in [start, *(builder.add(start, distance) for distance in distances)]:
            columns += load(builder, panel)
            for line in lines if is_few else ():
                prefetch(builder, builder.add(panel, ir.Constant(_I64, AHEAD + line)))
        next_sums = []
        for r in range(num_rows):
            a = broadcast(builder, builder.load(builder.gep(row_pointers[r], [k])), lanes)
            next_sums.append([vector_fma(builder, a, columns[v], sums[r][v]) for v in range(across)])
        k_next = builder.add(k, ir.Constant(_I64, 1))
        address_next = builder.add(address, step)
        k.add_incoming(k_next, loop)
        address.add_incoming(address_next, loop)
        for r in range(num_rows):
            for v in range(across):
                sums[r][v].add_incoming(zero, entry)
                sums[r][v].add_incoming(next_sums[r][v], loop)
        builder.cbranch(builder.icmp_signed("<", k_next, depth), loop, done)

        builder.position_at_end(done)
        for r in range(num_rows):
            for v in range(across):
                final = builder.phi(vector)
                final.add_incoming(zero, entry)
                final.add_incoming(next_sums[r][v], loop)
                next_sums[r][v] = final
        out_step = builder.mul(out_stride, four)
        for r in range(num_rows):
            row_start = builder.add(out, builder.mul(out_step, ir.Constant(_I64, r)))
            for v in range(across):
                place = builder.add(row_start, ir.Constant(_I64, 4 * lanes * v))
                store = builder.store(next_sums[r][v], builder.inttoptr(place, vector.as_pointer()))
                store.align = 4
        return context.get_dummy_value()

    @emitted
    def tile(typingctx: Any, rows: Any, b: Any, b_stride: Any, depth: Any, out: Any, out_stride: Any) -> Any:
        return types.void(*[types.int64] * 6), codegen

    return cast(Tile, tile)
