"""Digests of every op of a run, row by row, for one sequence: what bisect compares to name the op that moved.

Nothing here is imported by a run that is not traced. A traced model is the same weights with ops that digest
what goes in and what comes out; the arithmetic is untouched.

A digest is keyed by what the bits may depend on (layer, call, tensor, position of the token), never by where
a row happened to lie, so that traces of another batch, chunking or machine line up. Inputs that are read
through slot lists (window and selected entries, index keys) are digested as the rows that a query sees.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.batch import Step
from deepinfer.engine.step_plan import PlannedRows

Int64 = npt.NDArray[np.int64]

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


@dataclass(frozen=True)
class DraftedRow:
    """A row that was computed from a draft.

    Attributes:
        step: which step of the sequence.
        position: of the row.
        token_id: the draft.
        is_accepted: whether the draft was right; if not, the position is computed again in a later step.
    """

    step: int
    position: int
    token_id: int
    is_accepted: bool


@dataclass(frozen=True)
class _Pass:
    """Rows of the sequence in one step, the last of them drafted."""

    start: int
    end: int
    drafts: tuple[int, ...]


class Tracer:
    """Collects the digests of one sequence.

    Attributes:
        labels: a number for every label.
        ranks: where a label stands within its layer; of all steps the one in which most came before it, since
            a step may leave out what it has no rows for.
        digests: (label number, position) -> step and digest, in the order they were computed.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        """Rows of the sequence that starts with ``prompt`` and was handed in with just that are recorded."""
        self.prompt = np.array(prompt, np.int64)
        self.labels: dict[Label, int] = {}
        self.ranks: dict[Label, int] = {}
        self.digests: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._passes: list[_Pass] = []
        self.layer = 0
        self._halves: list[tuple[int, Int64, Int64]] = []
        self._is_alone = False
        self._rank = 0
        self._chains: list[str] = []
        self._after: tuple[int, Int64, Int64] | None = None
        self._calls: dict[tuple[int, str, str], int] = defaultdict(int)
        self._known: dict[int, int] = {}
        self._decoder_start = 0

    def begin(self, step: Step, decoder_start: int) -> None:
        """A step begins."""
        self._calls.clear()
        self._rank, self.layer, self._decoder_start = 0, 0, decoder_start
        mine = [i for i, chunk in enumerate(step.plan.chunks) if self._is_target(chunk)][:1]
        for chunk in (step.plan.chunks[i] for i in mine):
            drafts = chunk.token_ids[chunk.end - chunk.num_drafts : chunk.end].tolist()
            self._passes.append(_Pass(chunk.start, chunk.end, tuple(drafts)))
        self._is_alone = len(step.plan.chunks) == 1
        plan = step.plan
        self._halves = [self._half(rows, mine) for rows in (plan.decoder, plan.encoder)]
        completed = plan.encoder.positions % 2 == 1
        entries = _Subset(plan.encoder.chunk[completed], plan.encoder.positions[completed])
        self._halves.append(self._half(entries, mine))

    def end(self, num_layers: int) -> None:
        """The layers of a step are done; what follows is matched by content."""
        self._after = self._halves[0] if self._is_alone else None
        self._halves = []
        self.layer, self._rank = num_layers, 0

    def probe(self, name: str, layer: int, value: torch.Tensor) -> None:
        """Record a named tensor and learn which layer runs."""
        if name == "block_in":
            self.layer, self._rank = layer, 0
        self.record("probe", name, 0, [("out", value)])

    @contextmanager
    def chain(self, site: str, name: str) -> Iterator[None]:
        """What runs inside is the chain ``name`` that ``site`` calls."""
        self._chains.append(f"{site} {name}")
        try:
            yield
        finally:
            self._chains.pop()

    def site(self, function: str) -> str:
        """The function that calls an op, or the chain with whoever called it."""
        return self._chains[-1] if self._chains else function

    def call(self, site: str, op: str) -> int:
        """The number of this call of an op by a function in this layer and step."""
        key = self.layer, site, op
        self._calls[key] += 1
        return self._calls[key] - 1

    def record(self, site: str, op: str, number: int, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Digest the rows of tensors that belong to the sequence."""
        self._rank += len(tensors)
        located = next((place for _, value in tensors if (place := self._rows(value)) is not None), None)
        if located is None:
            return
        size, index, positions = located
        for rank, (name, value) in enumerate(tensors, self._rank - len(tensors)):
            if value.ndim == 0 or value.shape[0] != size:
                continue
            key = Label(self.layer, site, op, number, name)
            label = self.labels.setdefault(key, len(self.labels))
            self.ranks[key] = max(self.ranks.get(key, 0), rank)
            for position, digest in zip(positions.tolist(), row_digests(value, index), strict=True):
                self.digests[label, position].append((len(self._passes), digest))
                if name == "out" and _is_wide(value):
                    self._known[digest] = position

    def drafted(self, token_ids: Sequence[int] = ()) -> list[DraftedRow]:
        """Every drafted row of the sequence, whose known ids came to be ``token_ids``.

        A step goes on behind what was accepted in the one before; behind the last one, ids tell.
        """
        found = []
        for number, step in enumerate(self._passes, 1):
            first = step.end - len(step.drafts)
            known = tuple(token_ids[first : step.end])
            wrong = [mine != theirs for mine, theirs in zip(step.drafts, known, strict=False)]
            goes_on = first + (wrong.index(True) if True in wrong else len(wrong))
            if number < len(self._passes) and self._passes[number].start >= first:
                goes_on = self._passes[number].start
            found += [
                DraftedRow(number, position, token_id, position < goes_on)
                for position, token_id in enumerate(step.drafts, first)
            ]
        return found

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
        # outside a step rows are those of sequences in any order: recognise them by what they hold
        digests = row_digests(value, None) if _is_wide(value) else []
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

    def _half(self, rows: PlannedRows | _Subset, mine: Sequence[int]) -> tuple[int, Int64, Int64]:
        index = np.flatnonzero(np.isin(rows.chunk, mine))
        positions: Int64 = rows.positions[index]
        return len(rows.positions), index, positions


@dataclass(frozen=True)
class _Subset:
    """Rows of a step that complete a compression group."""

    chunk: Int64
    positions: Int64


def _is_wide(value: torch.Tensor) -> bool:
    """Whether rows hold enough to be told apart by it."""
    return value.ndim == 2 and value.shape[1] >= _RECOGNISABLE


def row_digests(value: torch.Tensor, index: Int64 | None) -> list[int]:
    """64-bit BLAKE2b of the bytes of each row of ``value`` (of rows ``index`` if given)."""
    chosen = value if index is None else value[torch.from_numpy(index).to(value.device)]
    if len(chosen) == 0:
        return []
    rows = np.ascontiguousarray(chosen.detach().cpu().numpy()).reshape(len(chosen), -1).view(np.uint8)
    return [
        int.from_bytes(hashlib.blake2b(row.data, digest_size=8).digest(), "little", signed=True)
        for row in rows
    ]
