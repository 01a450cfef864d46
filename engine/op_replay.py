"""Ops as the model really calls them: captured with their operands, and run again on some of their rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, cast

import torch

from deepinfer.engine.model.transformer import Transformer
from deepinfer.kernels import chains
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import SiteInput

_SHARED = {
    "window",
    "main",
    "keys",
    "data",
    "scales",
    "cos",
    "sin",
    "weight",
    "weights_packed",
    "gain",
    "sink",
}
"""Operands that all rows read, whatever their first axis happens to be."""
_RECORDS = {"window", "pages"}
"""Operands that are packed records, unless they are tensors: later steps write over them."""
_NOT_ROWS = {"load_records", "store_records", "window_places", "pool_waiting", "beside"}
"""Ops whose operands are pools of records; the packing check is theirs."""


@dataclass(frozen=True)
class OpCall:
    """One call of an op on T rows.

    Attributes:
        name: the op.
        num_rows: T.
        operands: its arguments by name, as they were before the call.
        result: its tensors, in order; each has T rows.
    """

    name: str
    num_rows: int
    operands: dict[str, Any]
    result: tuple[torch.Tensor, ...]

    def on_rows(self, ops: Ops, low: int, high: int) -> tuple[torch.Tensor, ...]:
        """The op once more on rows ``low .. high`` alone."""
        chosen = {name: self._part(name, value, low, high) for name, value in self.operands.items()}
        return tensors_of(getattr(ops, self.name)(**chosen))

    def _part(self, name: str, value: Any, low: int, high: int) -> Any:
        if isinstance(value, torch.Tensor):
            if name in _SHARED or value.ndim == 0 or value.shape[0] != self.num_rows:
                return value
            return value[low:high].clone()
        if isinstance(value, SiteInput):
            return value.of_rows(low, high)
        if is_dataclass(value) and not isinstance(value, type) and _holds_rows(value):
            parts = {f.name: self._part(f.name, getattr(value, f.name), low, high) for f in fields(value)}
            return replace(value, **parts)
        return value


def _holds_rows(value: Any) -> bool:
    return any(item.name in ("positions", "table") for item in fields(value))


def tensors_of(result: Any) -> tuple[torch.Tensor, ...]:
    """All tensors of what an op returned."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, SiteInput):
        return tuple(result.parts().values())
    if isinstance(result, tuple):
        return tuple(part for one in result for part in tensors_of(one))
    if is_dataclass(result) and not isinstance(result, type):
        return tuple(part for f in fields(result) for part in tensors_of(getattr(result, f.name)))
    return ()


class _CapturingOps:
    """A kernel set that keeps the first call of every op and shape."""

    can_be_recorded = False  # every call is looked at
    attention = chains.attention  # it asks the engine what it sees; the ops of it are kept

    def __init__(self, ops: Ops, calls: dict[tuple[Any, ...], OpCall]) -> None:
        self._ops, self._calls = ops, calls

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._ops, name)
        if not callable(op) or name.startswith(("pack", "bind")) or name in _NOT_ROWS or name == "device":
            return op
        chain = getattr(chains, name, None)
        if chain is not None and getattr(op, "__func__", op) is chain:
            return partial(chain, self)  # nothing but its ops
        parameters = list(inspect.signature(op).parameters)

        def captured(*arguments: Any, **named: Any) -> Any:
            given = {**dict(zip(parameters, arguments, strict=False)), **named}
            before = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
            result = op(*arguments, **named)
            parts = tensors_of(result)
            num_rows = parts[0].shape[0] if parts and parts[0].ndim else 0
            key = (name, *(tuple(part.shape[1:]) for part in parts))
            if num_rows and key not in self._calls and all(len(part) == num_rows for part in parts):
                kept = tuple(part.clone() for part in parts)
                records = before.keys() & _RECORDS
                before |= {n: deepcopy(before[n]) for n in records}  # no op that reads them writes
                self._calls[key] = OpCall(name, num_rows, before, kept)
            return result

        return captured


def capture(calls: dict[tuple[Any, ...], OpCall]) -> Callable[[Transformer], Transformer]:
    """What ``LLM.with_model`` takes to fill ``calls`` with the first call of every op and shape."""
    return lambda model: model.bound_to(cast(Ops, _CapturingOps(model.ops, calls)))


def row_ranges(num_rows: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of each size at the beginning, in the middle and at the end of ``num_rows`` rows."""
    for size in sizes:
        if size <= num_rows:
            for low in sorted({0, (num_rows - size) // 2, num_rows - size}):
                yield low, low + size
