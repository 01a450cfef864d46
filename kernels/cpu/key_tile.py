"""Scores of a few heads against a group of keys that lie anywhere, as LLVM vector code.

``out[h, j] = fma(q[h, C-1], key[j, C-1], ... fma(q[h, 0], key[j, 0], +0))``: a chain over ascending
channels, one key in each lane. Keys come as rows, so blocks of as many channels as lanes are turned around in
registers; vectors over four heads, which need no turning, would leave most lanes of a wide vector empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from llvmlite import ir
from numba.core import types

from deepinfer.kernels.cpu.compiled import emitted
from deepinfer.kernels.cpu.fma_tile import VECTOR, broadcast, vector_fma

KeyTile = Callable[..., None]
"""``tile(keys, heads, width, out, out_stride)``, integers all; see ``make_key_tile``."""

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_QUAD = 4
"""Floats that shuffles move about without leaving their part of a vector."""


def _shuffled(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, places: Sequence[int]) -> ir.Value:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(places)), list(places)))


def _in_quads(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, places: Sequence[int]) -> ir.Value:
    """The same four ``places`` in every quad; from 4 on they mean ``b``."""
    lanes = a.type.count
    found = [q + p if p < _QUAD else lanes + q + p - _QUAD for q in range(0, lanes, _QUAD) for p in places]
    return _shuffled(builder, a, b, found)


def _of_quads(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, first: int) -> ir.Value:
    """Quads ``first, first + 2, ...`` of ``a``, then those of ``b``."""
    lanes = a.type.count
    quads = [start + _QUAD * q for start in (0, lanes) for q in range(first, lanes // _QUAD, 2)]
    return _shuffled(builder, a, b, [quad + i for quad in quads for i in range(_QUAD)])


def _turned_quads(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Row q of the result holds quad q of every row; as many rows as quads, a power of two."""
    if len(rows) == 1:
        return rows
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    even = _turned_quads(builder, [_of_quads(builder, a, b, 0) for a, b in pairs])
    odd = _turned_quads(builder, [_of_quads(builder, a, b, 1) for a, b in pairs])
    return [row for pair in zip(even, odd, strict=True) for row in pair]


def turned(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Columns of as many vectors as they have lanes, a power of two from four on."""
    quarters = list[list[ir.Value]]()
    for first in range(0, len(rows), _QUAD):
        a, b, c, d = rows[first : first + _QUAD]
        low = [_in_quads(builder, x, y, (0, 4, 1, 5)) for x, y in ((a, b), (c, d))]
        high = [_in_quads(builder, x, y, (2, 6, 3, 7)) for x, y in ((a, b), (c, d))]
        halves = [(half, places) for half in (low, high) for places in ((0, 1, 4, 5), (2, 3, 6, 7))]
        quarters.append([_in_quads(builder, half[0], half[1], places) for half, places in halves])
    by_place = [_turned_quads(builder, [quarter[i] for quarter in quarters]) for i in range(_QUAD)]
    return [by_place[i][quad] for quad in range(len(rows) // _QUAD) for i in range(_QUAD)]


def make_key_tile(num_heads: int, lanes: int = VECTOR) -> KeyTile:
    """Build ``tile(keys, heads, width, out, out_stride)``.

    ``keys`` and ``heads`` are the addresses of ``lanes`` and ``num_heads`` int64 addresses of float32 rows of
    ``width`` channels, a multiple of ``lanes``; ``out`` is the address of the first score and ``out_stride``
    the distance of its rows in elements.
    """
    vector = ir.VectorType(_FLOAT, lanes)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        keys, heads, width, out, out_stride = args

        def rows_at(table: ir.Value, count: int) -> list[ir.Value]:
            pointer = builder.inttoptr(table, _I64.as_pointer())
            addresses = [builder.load(builder.gep(pointer, [ir.Constant(_I64, i)])) for i in range(count)]
            return [builder.inttoptr(address, _FLOAT.as_pointer()) for address in addresses]

        key_rows, head_rows = rows_at(keys, lanes), rows_at(heads, num_heads)
        entry = builder.block
        loop, done = builder.append_basic_block("channels"), builder.append_basic_block("done")
        zero = ir.Constant(vector, [0.0] * lanes)
        builder.branch(loop)

        builder.position_at_end(loop)
        first = builder.phi(_I64)
        sums = [builder.phi(vector) for _ in range(num_heads)]
        blocks = []
        for row in key_rows:
            block = builder.load(builder.bitcast(builder.gep(row, [first]), vector.as_pointer()))
            block.align = 4
            blocks.append(block)
        following = list[ir.Value](sums)
        for c, column in enumerate(turned(builder, blocks)):
            place = builder.add(first, ir.Constant(_I64, c))
            for h, row in enumerate(head_rows):
                q = broadcast(builder, builder.load(builder.gep(row, [place])), lanes)
                following[h] = vector_fma(builder, q, column, following[h])
        first_next = builder.add(first, ir.Constant(_I64, lanes))
        first.add_incoming(ir.Constant(_I64, 0), entry)
        first.add_incoming(first_next, loop)
        for phi, after in zip(sums, following, strict=True):
            phi.add_incoming(zero, entry)
            phi.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("<", first_next, width), loop, done)

        builder.position_at_end(done)
        for h, total in enumerate(following):
            place = builder.add(out, builder.mul(out_stride, ir.Constant(_I64, 4 * h)))
            builder.store(total, builder.inttoptr(place, vector.as_pointer())).align = 4
        return context.get_dummy_value()

    @emitted
    def tile(typingctx: Any, keys: Any, heads: Any, width: Any, out: Any, out_stride: Any) -> Any:
        return types.void(*[types.int64] * 5), codegen

    return cast(KeyTile, tile)
