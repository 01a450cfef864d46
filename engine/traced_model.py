"""A backbone whose every op is recorded by a `Tracer`: the same weights, the same arithmetic.

Works for any op, also for ones that do not exist yet: what goes in and comes out is found in the call itself.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np
import torch

from deepinfer.engine.batch import Step
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.model.transformer import Hidden, Memories, Transformer
from deepinfer.engine.op_trace import Tracer
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.kernels import chains
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import SiteInput

_NOT_TRACED = {"device", "beside", "load_records", "copy_rows_"}
"""What says where things lie, and reads and moves of records, which are seen where they are used."""
_OPEN = {"first_streams", "pool_waiting"}
"""Chains that mostly move rows, and so are always looked into."""
_PLACES = {"window_slots", "main_slots", "rows", "base", "targets"}
"""Parameters that say where something lies, or what is asked: they differ and mean nothing."""


class TracedOps:
    """A kernel set whose calls are recorded; works for any op, also for ones that do not exist yet."""

    can_be_recorded = False  # every call is looked at
    reads_records = False  # what a row sees is decoded rows
    attention = chains.attention  # the ops of it are looked at, and those of whoever says what it sees

    def __init__(self, ops: Ops, tracer: Tracer, *, open_chains: bool) -> None:
        """Calls go to ``ops``; ``open_chains`` runs a chain op by op, to see inside it."""
        self._ops, self._tracer, self._open_chains = ops, tracer, open_chains

    def __getattr__(self, name: str) -> Any:
        """The op ``name`` with its recording around it."""
        op = getattr(self._ops, name)
        if not callable(op) or name.startswith(("pack", "bind")) or name in _NOT_TRACED:
            return op
        if (self._open_chains or name in _OPEN) and hasattr(chains.Chains, name):
            return self._opened(getattr(chains, name), name)
        parameters = list(inspect.signature(op).parameters)

        def traced(*arguments: Any, **named: Any) -> Any:
            site = self._tracer.site(_caller())
            number = self._tracer.call(site, name)
            given = {**dict(zip(parameters, arguments, strict=False)), **named}
            before = list(_inputs(given))
            result = op(*arguments, **named)
            self._tracer.record(site, name, number, [*before, *_outputs(result)])
            return result

        return traced

    def _opened(self, chain: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The chain ``name`` run op by op."""

        def opened(*arguments: Any, **named: Any) -> Any:
            with self._tracer.chain(_caller(), name):
                return chain(self, *arguments, **named)

        return opened


def _caller() -> str:
    """The function that calls an op."""
    return sys._getframe(2).f_code.co_qualname.replace(".<locals>", "")


def _inputs(given: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a call as the rows see them."""
    has_keys = given.keys() >= {"keys", "base", "counts"}
    for name, value in given.items():
        if name == "keys" and has_keys:
            continue
        if isinstance(value, torch.Tensor) and name not in _PLACES and f"{name}_slots" not in given:
            yield f"in {name}", value.clone() if value.ndim and value.numel() < 1 << 22 else value
    for pool in ("window", "main"):
        if pool in given and f"{pool}_slots" in given:
            yield f"in {pool}", _gathered(given[pool], given[f"{pool}_slots"])
    if has_keys:
        yield "in keys", _seen_keys(given["keys"], given["base"], given["counts"])


def _gathered(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows of ``pool`` [P, C] behind ``slots`` [T, K], zero where there is none: [T, K, C]."""
    seen = pool[slots.clamp(min=0)] if len(pool) else pool.new_zeros(*slots.shape, pool.shape[1])
    seen[slots < 0] = 0.0
    return seen


def _seen_keys(keys: torch.Tensor, base: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """A digest per row of the index keys it may select from, int64 [T, 1]."""
    found = []
    own = np.ascontiguousarray(keys.cpu().numpy())
    for start, count in zip(base.tolist(), counts.tolist(), strict=True):
        digest = hashlib.blake2b(own[start : start + count].tobytes(), digest_size=8).digest()
        found.append(int.from_bytes(digest, "little", signed=True))
    return torch.tensor(found, dtype=torch.int64).view(-1, 1)


def _outputs(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(result, torch.Tensor):
        yield "out", result
    elif isinstance(result, tuple):
        for number, part in enumerate(result):
            if isinstance(part, torch.Tensor):
                yield ("out" if number == 0 else f"out {number}"), part
            elif isinstance(part, SiteInput):
                yield from _outputs(part)
    elif isinstance(result, SiteInput):
        for name, part in result.parts().items():
            yield f"out {name}", part
    elif is_dataclass(result) and not isinstance(result, type):
        for item in fields(result):
            part = getattr(result, item.name)
            if isinstance(part, torch.Tensor):
                yield f"out {item.name}", part


class TracedModel(Transformer):
    """A backbone whose every op is recorded."""

    def __init__(self, model: Transformer, tracer: Tracer, *, open_chains: bool) -> None:
        """The weights of ``model``."""
        vars(self).update(vars(model))
        self.ops = cast(Ops, TracedOps(model.ops, tracer, open_chains=open_chains))
        self._tracer = tracer

    def forward(
        self,
        step: Step,
        view: StepView,
        with_features: bool = False,
        probe: Probe = no_probe,
        memories: Memories | None = None,
    ) -> Hidden:
        """See ``Transformer``."""
        tracer = self._tracer
        tracer.begin(step, self.config.decoder_start)

        def both(name: str, layer: int, value: torch.Tensor) -> None:
            tracer.probe(name, layer, value)
            probe(name, layer, value)

        hidden = super().forward(step, view, with_features, both, memories)
        tracer.end(self.config.num_hidden_layers)
        return hidden


def traced(tracer: Tracer, *, open_chains: bool = True) -> Callable[[Transformer], Transformer]:
    """What ``LLM.with_model`` takes to record a run."""
    return lambda model: TracedModel(model, tracer, open_chains=open_chains)
