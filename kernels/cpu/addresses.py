"""What compiled code does with an address: arrays, atomic numbers, semaphores, calls.

Addresses are int64. Semaphores are those of POSIX; ``prepared`` says whether the system makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types

from deepinfer.kernels.cpu.compiled import emitted, inlined

Address = int | np.int64
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ORDER = "seq_cst"


def _make_pointer(kind: Any) -> Callable[[Address], Any]:
    """Build ``pointer(address)``, for ``numba.carray``."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    target: Any = types.CPointer

    @emitted
    def pointer(typingctx: Any, address: Any) -> Any:
        return target(kind)(types.int64), codegen

    return cast(Callable[[Address], Any], pointer)


floats, integers, octets = (_make_pointer(kind) for kind in (types.float32, types.int64, types.uint8))


def _declared(builder: ir.IRBuilder, name: str, arguments: Sequence[ir.Type]) -> Any:
    declare: Any = cgutils.get_or_insert_function
    return declare(builder.module, ir.FunctionType(_I32, arguments), name)


def _make_add() -> Callable[[Address, Address], int]:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        place = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", place, args[1], _ORDER)

    @emitted
    def add(typingctx: Any, address: Any, value: Any) -> Any:
        return types.int64(types.int64, types.int64), codegen

    return cast(Callable[[Address, Address], int], add)


def _make_swapped() -> Callable[[Address, Address, Address], bool]:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        place = builder.inttoptr(args[0], _I64.as_pointer())
        pair = builder.cmpxchg(place, args[1], args[2], _ORDER, _ORDER)
        return builder.extract_value(pair, 1)

    @emitted
    def swapped(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
        return types.boolean(types.int64, types.int64, types.int64), codegen

    return cast(Callable[[Address, Address, Address], bool], swapped)


def _make_call() -> Callable[[int, Address, int, int], int]:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(_I64, [_I64] * 3)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    @emitted
    def call(typingctx: Any, function: Any, line: Any, low: Any, high: Any) -> Any:
        return types.int64(*[types.int64] * 4), codegen

    return cast(Callable[[int, Address, int, int], int], call)


def _make_semaphore_call(name: str, *more: int) -> Callable[[Address], int]:
    """``name(semaphore, *more)``, a number that is 0 if all went well."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        function = _declared(builder, name, [_I64, *[_I32] * len(more)])
        return builder.call(function, [args[0], *(ir.Constant(_I32, value) for value in more)])

    @emitted
    def semaphore_call(typingctx: Any, address: Any) -> Any:
        return types.int32(types.int64), codegen

    return cast(Callable[[Address], int], semaphore_call)


def _make_processor() -> Callable[[], int]:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        return builder.call(_declared(builder, "sched_getcpu", []), [])

    @emitted
    def processor(typingctx: Any) -> Any:
        return types.int32(), codegen

    return cast(Callable[[], int], processor)


add, swapped, call = _make_add(), _make_swapped(), _make_call()
processor = _make_processor()
"""Add and get what was there; whether ``expected`` was there and is ``value`` now; call an address;
the processor that the caller runs on."""
_wait_once, post = _make_semaphore_call("sem_wait"), _make_semaphore_call("sem_post")
_init = _make_semaphore_call("sem_init", 0, 0)


@inlined
def prepared(semaphore: Address) -> bool:
    """Whether a semaphore could be made there, for threads of this process; it begins with 0."""
    return _init(semaphore) == 0


@inlined
def wait(semaphore: Address) -> None:
    """Wait until it is above 0, and take one; signals do not end that."""
    while _wait_once(semaphore) != 0:
        pass


def address_of(values: npt.NDArray[np.generic]) -> int:
    """Where values begin; an array's ``ctypes`` takes seven times as long."""
    found: int = values.__array_interface__["data"][0]
    return found
