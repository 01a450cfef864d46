"""Runs a wave of sequences through the model in steps of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from deepinfer.engine.batch import Step, host_step
from deepinfer.engine.cache.caches import Caches, CacheShape, default_ring
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.logprobs import HiddenRows
from deepinfer.engine.model.draft import Draft
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.step_graphs import StepGraphs
from deepinfer.engine.step_plan import BLOCK_TOKENS, Chunk, Int64, blocks_for
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.engine.transfer import moved


@dataclass(frozen=True)
class Home:
    """Caches that waves without drafts use one after the other, and recordings of their steps."""

    caches: Caches
    graphs: StepGraphs

    @classmethod
    def of(cls, model: Transformer, max_rows: int, num_slots: int) -> Home:
        """Room for up to ``num_slots`` sequences of up to ``max_rows`` tokens together."""
        shape = CacheShape(
            num_blocks=max_rows // BLOCK_TOKENS + num_slots,
            num_slots=num_slots,
            ring=default_ring(model.config),
            exact=not model.ops.round_caches,
        )
        caches = Caches(model.config, shape, model.ops.device)
        return cls(caches, StepGraphs(model, caches, max_rows + 1, max_rows=max_rows, saves_rings=False))


class Wave:
    """Sequences that share caches while they are prefilled; sequence i has state slot i."""

    def __init__(
        self,
        model: Transformer,
        draft: Draft | None,
        rule: PrefillRule,
        sequences: Sequence[Int64],
        home: Home | None = None,
    ) -> None:
        """Place the sequences in fresh caches, or at a ``home`` that they fit; nothing runs yet.

        ``draft`` also fills the draft caches; a home has none.
        """
        config = model.config
        self.model, self.draft, self.rule, self.sequences = model, draft, rule, list(sequences)
        counts = [blocks_for(len(ids)) for ids in sequences]
        first = np.cumsum([1, *counts])  # block 0 means "none"
        self.blocks = [np.arange(first[i], first[i] + counts[i], dtype=np.int64) for i in range(len(counts))]
        longest = max((len(ids) for ids in sequences), default=0)
        self.graphs = None if home is None else home.graphs
        if home is not None:
            self.caches = home.caches
        else:
            shape = CacheShape(
                num_blocks=sum(counts),
                num_slots=len(sequences),
                ring=default_ring(config),
                draft_ring=max(longest, config.sliding_window)
                if draft is not None
                else 0,  # anchors lie anywhere
                exact=not model.ops.round_caches,
            )
            self.caches = Caches(config, shape, model.ops.device)
        self.layout = self.caches.layout(model.history_length)
        model.reserve(longest + (config.dspark_block_size if draft is not None else 0) + 1)

    def chunks(self, max_rows: int, max_chunk: int | None) -> Iterator[list[Chunk]]:
        """Cut the sequences, in order, into steps of at most ``max_rows`` rows."""
        step: list[Chunk] = []
        room = max_rows
        for number, ids in enumerate(self.sequences):
            start = 0
            while start < len(ids):
                length = min(len(ids) - start, room, max_chunk or len(ids))
                step.append(
                    Chunk(
                        token_ids=ids,
                        start=start,
                        end=start + length,
                        prompt_length=len(ids),
                        slot=number,
                        blocks=self.blocks[number],
                    )
                )
                start += length
                room -= length
                if room == 0 or start < len(ids):  # a sequence has at most one chunk in a step
                    yield step
                    step, room = [], max_rows
        if step:
            yield step

    def run(
        self, max_rows: int, max_chunk: int | None = None, probe: Probe = no_probe
    ) -> Iterator[HiddenRows]:
        """Prefill everything; yields the rows that the decoder layers computed, step by step.

        At a home, the next step writes over them, and nobody probes.
        """
        for chunks in self.chunks(max_rows, max_chunk):
            host = host_step(chunks, self.rule, self.layout)
            if self.graphs is not None:
                step = self.graphs.place(host)
                hidden = self.graphs.forward(step, StepView(self.caches, step, self.model.ops), False)
                yield HiddenRows(hidden.normed, self._sequence_of_rows(step), step.plan.decoder.positions)
                continue
            step = moved(host, self.model.ops.device)
            view = StepView(self.caches, step, self.model.ops)
            hidden = self.model.forward(step, view, self.draft is not None, probe)
            if self.draft is not None and hidden.features is not None:
                self.draft.write_context(hidden.features, step.decoder, view, probe)
            rows = step.plan.decoder
            yield HiddenRows(hidden.normed, self._sequence_of_rows(step), rows.positions)

    def _sequence_of_rows(self, step: Step) -> Int64:
        slots = np.array([chunk.slot for chunk in step.chunks], np.int64)
        return slots[step.plan.decoder.chunk]
