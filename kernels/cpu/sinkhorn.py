"""The iterations of Sinkhorn, as LLVM vector code: eight matrices side by side, one in each lane.

Sixteen vectors, one for each element of a matrix, stay in registers from the first iteration to the last.
From a numba loop every sum and every quotient goes through memory, ten times slower. Each lane's operations
keep one order: a sum over ascending streams, then eps, then the quotients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import types

from deepinfer.kernels.cpu.compiled import emitted

STREAMS, LANES = 4, 8
Balance = Callable[[np.int64, int, np.float32], None]
"""``balance(p, iterations, eps)``; ``p`` is the address of float32 [STREAMS * STREAMS, LANES]."""
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _divided(builder: ir.IRBuilder, p: list[ir.Value], first: int, step: int, eps: ir.Value) -> None:
    """Divide elements ``first, first + step, ...`` of every matrix by their sum plus ``eps``.

    No element is -0, so the sum begins with the first one as well as with zero.
    """
    places = [first + i * step for i in range(STREAMS)]
    total = p[places[0]]
    for place in places[1:]:
        total = builder.fadd(total, p[place])
    total = builder.fadd(total, eps)
    for place in places:
        p[place] = builder.fdiv(p[place], total)


def _rows(builder: ir.IRBuilder, p: list[ir.Value], eps: ir.Value) -> None:
    for a in range(STREAMS):
        _divided(builder, p, a * STREAMS, 1, eps)


def _columns(builder: ir.IRBuilder, p: list[ir.Value], eps: ir.Value) -> None:
    for b in range(STREAMS):
        _divided(builder, p, b, STREAMS, eps)


def _make_balance() -> Balance:
    """Columns, then ``iterations - 1`` times rows and columns, in place."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        address, iterations, one_eps = args
        pointer, count = builder.inttoptr(address, _VECTOR.as_pointer()), STREAMS * STREAMS
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        single = builder.insert_element(undefined, one_eps, ir.Constant(_I32, 0))
        eps = builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))
        places = [builder.gep(pointer, [ir.Constant(_I64, i)]) for i in range(count)]
        p = [builder.load(place) for place in places]
        for value in p:
            value.align = 4
        _columns(builder, p, eps)
        entry = builder.block
        loop, done = builder.append_basic_block("iteration"), builder.append_basic_block("balanced")
        one = ir.Constant(_I64, 1)
        builder.cbranch(builder.icmp_signed(">", iterations, one), loop, done)

        builder.position_at_end(loop)
        number, held = builder.phi(_I64), [builder.phi(_VECTOR) for _ in range(count)]
        following = list[ir.Value](held)
        _rows(builder, following, eps)
        _columns(builder, following, eps)
        number_next = builder.add(number, one)
        number.add_incoming(one, entry)
        number.add_incoming(number_next, loop)
        for phi, before, after in zip(held, p, following, strict=True):
            phi.add_incoming(before, entry)
            phi.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("<", number_next, iterations), loop, done)

        builder.position_at_end(done)
        finals = [builder.phi(_VECTOR) for _ in range(count)]
        for final, before, after in zip(finals, p, following, strict=True):
            final.add_incoming(before, entry)
            final.add_incoming(after, loop)
        for place, final in zip(places, finals, strict=True):
            store = builder.store(final, place)
            store.align = 4
        return context.get_dummy_value()

    @emitted
    def balance(typingctx: Any, p: Any, iterations: Any, eps: Any) -> Any:
        return types.void(types.int64, types.int64, types.float32), codegen

    return cast(Balance, balance)


balance = _make_balance()


def refuse_other_streams(num_streams: int) -> None:
    """Raise ValueError unless matrices have the size that ``balance`` is written for."""
    if num_streams != STREAMS:
        raise ValueError(f"hyper-connections: {num_streams} residual streams, the kernels know {STREAMS}")
