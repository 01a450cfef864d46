"""The engine loop: plan a step, run it, sample, hand out records; requests join and leave between steps."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.api import (
    FinishReason,
    Float32Array,
    GenerateRequest,
    PrefillMode,
    RequestFailure,
    ScoreRequest,
    TokenRecord,
)
from deepinfer.engine.batch import Step, build_step
from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.cache.caches import Caches, CacheShape, default_ring
from deepinfer.engine.cache.prefix_tree import PrefixTree
from deepinfer.engine.cache.snapshots import Snapshot
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.logprobs import HiddenRows, ScoreSheet, fill_sheets
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.requests import checked_ids
from deepinfer.engine.sampler import Sampled, sample_rows
from deepinfer.engine.sampling_rules import validate
from deepinfer.engine.scheduler import Limits, Scheduler
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.step_plan import BLOCK_TOKENS, Int64
from deepinfer.engine.step_records import boundaries
from deepinfer.engine.stopping import finish_reason
from deepinfer.engine.torch_threads import torch_threads_of
from deepinfer.engine.transfer import moved

Observer = Callable[[Sequence, Float32Array], None]
"""Shown each sample and the raw logits row [V], its own copy, that its next token is chosen from."""


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """Sizes of a running engine; bits never depend on any of them.

    Attributes:
        limits: bounds of a step and of live sequences.
        num_blocks: cache blocks of 128 tokens.
        prefix_caching: keep finished blocks findable for later prompts.
        max_snapshots: most block boundaries that a later prompt can resume at.
    """

    limits: Limits
    num_blocks: int
    prefix_caching: bool = True
    max_snapshots: int = 1024


class EngineCore:
    """Runs generate requests with continuous batching on one set of caches."""

    def __init__(self, model: Transformer, rule: PrefillRule, config: CoreConfig) -> None:
        """Allocate the caches."""
        self.model, self.rule, self.config = model, rule, config
        self.pool = BlockPool(config.num_blocks)
        self.tree: PrefixTree[Snapshot] = PrefixTree(
            BLOCK_TOKENS, self.pool, max_snapshots=config.max_snapshots
        )
        shape = CacheShape(
            num_blocks=config.num_blocks,
            num_slots=config.limits.max_sequences,
            ring=default_ring(model.config),
            exact=not model.ops.round_caches,
        )
        self.caches = Caches(model.config, shape, model.ops.device)
        self.layout = self.caches.layout(model.history_length)
        self.scheduler = Scheduler(
            limits=config.limits, pool=self.pool, num_blocks=config.num_blocks, admit=self._resume
        )
        self.max_length = min(model.config.max_position_embeddings, config.num_blocks * BLOCK_TOKENS)
        self.observe: Observer | None = None
        self._live: dict[tuple[str, int], Sequence] = {}
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any sample still waits or runs."""
        return bool(self._live)

    def add(self, request: GenerateRequest) -> RequestFailure | None:
        """Queue a request; a bad one is refused with a reason and leaves no trace."""
        ids = checked_ids(request, self.model.config)
        if isinstance(ids, RequestFailure):
            return ids
        reason = validate(request.params, self.model.config.vocab_size)
        if (request.request_id, 0) in self._live:
            reason = "a request of this name is running; names must be unique"
        if reason is None and not self.scheduler.fits(len(ids) + 1):
            reason = (
                f"{len(ids)} tokens do not fit {self.config.num_blocks} cache blocks of {BLOCK_TOKENS}; "
                "allow more blocks"
            )
        if reason is not None:
            return RequestFailure(request_id=request.request_id, reason=f"{request.request_id}: {reason}")
        seed = secrets.randbits(64) if request.params.seed is None else request.params.seed
        for index in range(request.params.n):
            sequence = Sequence(request, self._num_added, seed, index, ids, self._sheet(request, ids))
            self._num_added += 1
            self._live[sequence.key] = sequence
            self.scheduler.add(sequence)
        return None

    def _sheet(self, request: GenerateRequest, ids: Int64) -> ScoreSheet | None:
        if not request.prompt_logprobs:
            return None
        asked = ScoreRequest(request_id=request.request_id, token_ids=request.token_ids)
        return ScoreSheet(asked, ids, self.rule.low(len(ids)) + 1, self.model.config.vocab_size)

    def abort(self, request_id: str) -> list[TokenRecord]:
        """End all samples of a request now; one terminal record each, none for an unknown name."""
        ended = [sequence for key, sequence in self._live.items() if key[0] == request_id]
        return [self._end(sequence, FinishReason.ABORT) for sequence in ended]

    def sequence(self, request_id: str, sample_index: int) -> Sequence | None:
        """A live sample, for statistics."""
        return self._live.get((request_id, sample_index))

    def step(self) -> list[TokenRecord]:
        """Run one step; returns the tokens that it emitted, in packed order."""
        planned = self.scheduler.next_step()
        if not planned:
            return []
        with torch_threads_of(self.model.ops):
            return self._run(planned)

    def _run(self, planned: Items[tuple[Sequence, int]]) -> list[TokenRecord]:
        chunks = [sequence.chunk(rows) for sequence, rows in planned]
        self.model.reserve(max(chunk.end for chunk in chunks))
        step = build_step(chunks, self.rule, self.layout, self.model.ops.device)
        view = StepView(self.caches, step, self.model.ops, self._num_snapshot_layers)
        hidden = self.model.forward(step, view)
        for sequence, rows in planned:
            sequence.num_computed += rows
        if self.config.prefix_caching:
            self._remember(step, view, [sequence for sequence, _ in planned])
        self._score_prompts(step, hidden.normed, [sequence for sequence, _ in planned])
        complete = [i for i, (sequence, _) in enumerate(planned) if sequence.num_remaining == 0]
        if not complete:
            return []
        ends = np.searchsorted(step.plan.decoder.chunk, complete, side="right")  # rows are sorted by chunk
        last_rows = moved(torch.from_numpy(ends - 1), self.model.ops.device)
        return self._sample([planned[i][0] for i in complete], hidden.normed[last_rows])

    def _score_prompts(self, step: Step, normed: torch.Tensor, sequences: Items[Sequence]) -> None:
        """Score the rows of the step that predict a prompt token somebody asked about."""
        sheets = [sequence.sheet for sequence in sequences]
        if not any(sheets):
            return
        owner, positions = step.plan.decoder.chunk, step.plan.decoder.positions
        ends = np.array([0 if sheet is None else len(sheet.token_ids) - 1 for sheet in sheets])
        picked = np.flatnonzero(positions < ends[owner])
        fill_sheets(self.model, HiddenRows(normed, owner, positions), sheets, picked)

    def _sample(self, sequences: Items[Sequence], normed: torch.Tensor) -> list[TokenRecord]:
        logits = self.model.logits(normed)
        if self.observe is not None:
            for row, sequence in enumerate(sequences):
                self.observe(sequence, logits[row].cpu().numpy().copy())
        sampled = sample_rows(
            self.model.ops,
            logits,
            [sequence.request.params for sequence in sequences],
            [sequence.seed for sequence in sequences],
            [sequence.num_tokens for sequence in sequences],
            [sequence.sample_index for sequence in sequences],
        )
        return [self._emit(sequence, sampled, row) for row, sequence in enumerate(sequences)]

    def _emit(self, sequence: Sequence, sampled: Sampled, row: int) -> TokenRecord:
        token_id, position = int(sampled.token_ids[row]), sequence.num_tokens
        sequence.append(token_id)
        reason = finish_reason(
            sequence.request.params,
            sequence.prompt_length,
            sequence.output_ids,
            eos_token_id=self.model.config.eos_token_id,
            max_model_len=self.max_length,
            stop_text=sequence.request.should_stop,
        )
        if reason is not None:
            self._forget(sequence, reason)
        sheet = sequence.sheet if sequence.num_emitted == 1 else None
        top_ids, top_logprobs = sampled.top_ids[row], sampled.top_logprobs[row]
        return TokenRecord(
            request_id=sequence.request.request_id,
            sample_index=sequence.sample_index,
            token_id=token_id,
            position=position,
            raw_logprob=float(sampled.raw_logprobs[row]),
            processed_logprob=float(sampled.processed_logprobs[row]),
            top_ids=() if top_ids is None else tuple(top_ids.tolist()),
            top_logprobs=() if top_logprobs is None else tuple(top_logprobs.tolist()),
            prompt=None if sheet is None else sheet.result(),
            finish_reason=reason or "",
            num_hit_tokens=sequence.num_hit_tokens if reason else 0,
            num_preemptions=sequence.num_preemptions if reason else 0,
        )

    def _forget(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self.scheduler.release(sequence)
        del self._live[sequence.key]

    def _end(self, sequence: Sequence, reason: FinishReason) -> TokenRecord:
        """Finish a sample without a token."""
        self._forget(sequence, reason)
        return TokenRecord(
            request_id=sequence.request.request_id,
            sample_index=sequence.sample_index,
            token_id=None,
            position=sequence.num_tokens,
            raw_logprob=math.nan,
            processed_logprob=math.nan,
            finish_reason=reason,
            num_hit_tokens=sequence.num_hit_tokens,
            num_preemptions=sequence.num_preemptions,
        )

    @property
    def _num_snapshot_layers(self) -> int:
        """Layers whose rings a later prompt resumes from: all, or the encoder's, whose rows are never cut."""
        if not self.config.prefix_caching:
            return 0
        config = self.model.config
        return config.num_hidden_layers if self.rule.mode is PrefillMode.OFF else config.decoder_start

    def _resume(self, sequence: Sequence) -> None:
        """Start a sequence from the longest cached prefix that its mode allows (product.md section 9)."""
        if not self.config.prefix_caching or (sequence.sheet is not None and not sequence.num_emitted):
            return  # rows that a hit spares would leave no score
        # the last known token is always computed: its row gives the next one
        limit = sequence.num_tokens - 1
        if self.rule.mode is not PrefillMode.OFF:
            limit = min(limit, self.rule.low(sequence.prompt_length))
        match = self.tree.match(sequence.token_ids, limit)
        if match.snapshot is None:
            return
        match.snapshot.restore(self.caches, sequence.slot, match.num_tokens)
        sequence.blocks = list(match.blocks)
        sequence.num_computed = match.num_tokens

    def _remember(self, step: Step, view: StepView, sequences: Items[Sequence]) -> None:
        """Make the blocks that this step completed findable, with the state at their ends."""
        rows = step.plan.encoder
        ends = boundaries(rows)
        for number, (chunk, position) in enumerate(
            zip(rows.chunk[ends].tolist(), rows.positions[ends].tolist(), strict=True)
        ):
            sequence, boundary = sequences[chunk], position + 1
            rings = {layer: saved[number].clone() for layer, saved in view.snapshots.items()}
            self.tree.insert(sequence.token_ids, boundary, sequence.blocks, {boundary: Snapshot(rings)})
