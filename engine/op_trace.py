"""Digests of every op of a run, row by row, for one sequence: what bisect compares to name the op that moved.

Nothing here is imported by a run that is not traced. A traced model is the same weights with ops that digest
what goes in and what comes out; the arithmetic is untouched.

A digest is keyed by what the bits may depend on (layer, call, tensor, position of the token), never by where
a row happened to lie, so that traces of another batch, chunking or machine line up. Inputs that are read
through slot lists (window and selected entries, index keys) are digested as the rows that a query sees.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.batch import Rows, Step
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.model.transformer import Hidden, Transformer
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.kernels import chains
from deepinfer.kernels.interface import Ops

Int64 = npt.NDArray[np.int64]
_PLACES = {"window_slots", "main_slots", "rows", "base", "targets"}
"""Parameters that say where something lies, or what is asked: they differ and mean nothing."""

_RECOGNISABLE = 32


@dataclass(frozen=True, order=True)
class Label:
    """One tensor of one op call of a pass.

    Attributes:
        layer: backbone layer; the number of layers stands for head and sampling.
        site: function that calls the op.
        op: the op, or ``probe`` for a named tensor that no op made.
        number: how many calls of this op by this function in this layer came before.
        tensor: ``in NAME`` or ``out``.
    """

    layer: int
    site: str
    op: str
    number: int
    tensor: str


class Tracer:
    """Collects the digests of one sequence.

    Attributes:
        labels: every label in the order of execution within its layer.
        digests: (label number, position) -> digests, in the order they were computed.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        """Rows of the sequence that starts with ``prompt`` and was handed in with just that are recorded."""
        self.prompt = np.array(prompt, np.int64)
        self.labels: dict[Label, int] = {}
        self.digests: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.layer = 0
        self._halves: list[tuple[int, Int64, Int64]] = []
        self._is_alone = False
        self._after: tuple[int, Int64, Int64] | None = None
        self._calls: dict[tuple[int, str, str], int] = defaultdict(int)
        self._known: dict[int, int] = {}
        self._decoder_start = 0

    def begin(self, step: Step, decoder_start: int) -> None:
        """A step begins."""
        self._calls.clear()
        self.layer, self._decoder_start = 0, decoder_start
        mine = [i for i, chunk in enumerate(step.plan.chunks) if self._is_target(chunk)][:1]
        self._is_alone = len(step.plan.chunks) == 1
        self._halves = [self._half(rows, mine) for rows in (step.decoder, step.encoder)]
        completed = step.encoder.positions % 2 == 1
        entries = _Subset(step.encoder.chunk[completed], step.encoder.positions[completed])
        self._halves.append(self._half(entries, mine))

    def end(self, num_layers: int) -> None:
        """The layers of a step are done; what follows is matched by content."""
        self._after = self._halves[0] if self._is_alone else None
        self._halves = []
        self.layer = num_layers

    def probe(self, name: str, layer: int, value: torch.Tensor) -> None:
        """Record a named tensor and learn which layer runs."""
        if name == "block_in":
            self.layer = layer
        self.record("probe", name, 0, [("out", value)])

    def call(self, site: str, op: str) -> int:
        """The number of this call of an op by a function in this layer and step."""
        key = self.layer, site, op
        self._calls[key] += 1
        return self._calls[key] - 1

    def record(self, site: str, op: str, number: int, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Digest the rows of tensors that belong to the sequence."""
        located = next((place for _, value in tensors if (place := self._rows(value)) is not None), None)
        if located is None:
            return
        size, index, positions = located
        for name, value in tensors:
            if value.ndim == 0 or value.shape[0] != size:
                continue
            label = self.labels.setdefault(Label(self.layer, site, op, number, name), len(self.labels))
            for position, digest in zip(positions.tolist(), row_digests(value, index), strict=True):
                self.digests[label, position].append(digest)
                if name == "out" and _is_wide(value):
                    self._known[digest] = position

    def _rows(self, value: torch.Tensor) -> tuple[int, Int64, Int64] | None:
        """Number of rows, and which of them belong to the sequence at which positions."""
        if value.ndim == 0 or value.shape[0] == 0:
            return None
        halves = self._halves
        if self.layer < self._decoder_start and len(halves) > 1:
            halves = [halves[1], halves[0], *halves[2:]]
        for size, index, positions in halves:
            if value.shape[0] == size:
                return (size, index, positions) if len(index) else None
        if halves:
            return None
        if not _is_wide(value):
            return None
        # outside a step rows are those of sequences in any order: recognise them by what they hold
        digests = row_digests(value, None)
        times = Counter(digests)  # sequences with the same beginning have the same rows there: not ours alone
        mine = [(i, self._known[d]) for i, d in enumerate(digests) if d in self._known and times[d] == 1]
        if not mine:
            # draft stages go over the rows of the step once more; with one sequence there is no doubt whose
            return self._after if self._after is not None and self._after[0] == len(value) else None
        index, positions = (np.array(column, np.int64) for column in zip(*mine, strict=True))
        return value.shape[0], index, positions

    def _is_target(self, chunk: Any) -> bool:
        size = len(self.prompt)
        return chunk.prompt_length == size and np.array_equal(chunk.token_ids[:size], self.prompt)

    def _half(self, rows: Rows | _Subset, mine: Sequence[int]) -> tuple[int, Int64, Int64]:
        index = np.flatnonzero(np.isin(rows.chunk.numpy(), mine))
        positions: Int64 = rows.positions.numpy()[index]
        return len(rows.positions), index, positions


@dataclass(frozen=True)
class _Subset:
    """Rows of a step that complete a compression group."""

    chunk: torch.Tensor
    positions: torch.Tensor


def _is_wide(value: torch.Tensor) -> bool:
    """Whether rows hold enough to be told apart by it."""
    return value.ndim == 2 and value.shape[1] >= _RECOGNISABLE


def row_digests(value: torch.Tensor, index: Int64 | None) -> list[int]:
    """64-bit BLAKE2b of the bytes of each row of ``value`` (of rows ``index`` if given)."""
    chosen = value if index is None else value[torch.from_numpy(index)]
    if len(chosen) == 0:
        return []
    rows = np.ascontiguousarray(chosen.detach().numpy()).reshape(len(chosen), -1).view(np.uint8)
    return [
        int.from_bytes(hashlib.blake2b(row.data, digest_size=8).digest(), "little", signed=True)
        for row in rows
    ]


class TracedOps:
    """A kernel set whose calls are recorded; works for any op, also for ones that do not exist yet."""

    def __init__(self, ops: Ops, tracer: Tracer, *, open_chains: bool) -> None:
        """Calls go to ``ops``; ``open_chains`` runs a chain op by op, to see inside it."""
        self._ops, self._tracer, self._open_chains = ops, tracer, open_chains

    def __getattr__(self, name: str) -> Any:
        """The op ``name`` with its recording around it."""
        op = getattr(self._ops, name)
        if not callable(op) or name.startswith(("pack", "bind")) or name == "load_records":
            return op
        if self._open_chains and hasattr(chains.Chains, name):
            return partial(getattr(chains, name), self)
        parameters = list(inspect.signature(op).parameters)

        def traced(*arguments: Any, **named: Any) -> Any:
            site = sys._getframe(1).f_code.co_qualname.replace(".<locals>", "")
            number = self._tracer.call(site, name)
            given = {**dict(zip(parameters, arguments, strict=False)), **named}
            before = list(_inputs(given))
            result = op(*arguments, **named)
            self._tracer.record(site, name, number, [*before, *_outputs(result)])
            return result

        return traced


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
    seen = pool[slots.clamp(min=0)] if len(pool) else torch.zeros(*slots.shape, pool.shape[1])
    seen[slots < 0] = 0.0
    return seen


def _seen_keys(keys: torch.Tensor, base: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """A digest per row of the index keys it may select from, int64 [T, 1]."""
    found = []
    own = np.ascontiguousarray(keys.numpy())
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
        self, step: Step, view: StepView, with_features: bool = False, probe: Probe = no_probe
    ) -> Hidden:
        """See ``Transformer``."""
        tracer = self._tracer
        tracer.begin(step, self.config.decoder_start)

        def both(name: str, layer: int, value: torch.Tensor) -> None:
            tracer.probe(name, layer, value)
            probe(name, layer, value)

        hidden = super().forward(step, view, with_features, both)
        tracer.end(self.config.num_hidden_layers)
        return hidden


def traced(tracer: Tracer, *, open_chains: bool = True) -> Callable[[Transformer], Transformer]:
    """What ``LLM.with_model`` takes to record a run."""
    return lambda model: TracedModel(model, tracer, open_chains=open_chains)
