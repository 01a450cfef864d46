"""The engine's front door: load a checkpoint once, then score and draft token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.api import (
    CacheFormat,
    Completion,
    Device,
    EngineConfig,
    GenerateRequest,
    Profile,
    RequestFailure,
    ScoreRequest,
    ScoreResult,
    TokenRecord,
)
from deepinfer.engine.bundled import bundled_model_dir
from deepinfer.engine.config import load_model_config
from deepinfer.engine.core import CoreConfig, EngineCore, Observer
from deepinfer.engine.draft_request import DraftRequest, DraftResult
from deepinfer.engine.errors import ConfigError, InputError
from deepinfer.engine.generation import collect, stream
from deepinfer.engine.loading import LoadedModel
from deepinfer.engine.model.draft import Anchors, Draft
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.prefill import prefill_rule
from deepinfer.engine.requests import checked_ids
from deepinfer.engine.runner import Wave
from deepinfer.engine.scheduler import Limits
from deepinfer.engine.scoring import Scorer
from deepinfer.engine.speculation.drafter import Drafter, ModelDrafter
from deepinfer.engine.speculation.stats import DraftStats
from deepinfer.engine.state import cache_rows
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.torch_threads import torch_threads_of
from deepinfer.engine.tracing import Probe
from deepinfer.engine.transfer import moved
from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.interface import Ops


def _ops(config: EngineConfig) -> Ops:
    try:
        return select_ops(
            config.backend,
            bf16=config.profile is Profile.FAST,
            round_caches=config.cache_format is CacheFormat.RELEASED,
            num_threads=config.num_threads,
            device=config.device.value,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _readable(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """The model with the longest sequence that it may read; rotary angles are exact up to 2**20."""
    longest = (
        max(model.max_position_embeddings, 2**20) if config.allow_long else model.max_position_embeddings
    )
    return replace(model, max_position_embeddings=longest)


class LLM:
    """A loaded model with a fixed engine configuration."""

    def __init__(self, model: Path | None = None, config: EngineConfig | None = None) -> None:
        """Load a checkpoint folder in the released layout; ``None`` is the bundled checkpoint.

        Raises:
            ConfigError, CheckpointError, NonFiniteError: the checkpoint is unusable.
            CapacityError: it does not fit this machine (raised before any allocation).
        """
        self.config = EngineConfig() if config is None else config
        self.model_dir = bundled_model_dir() if model is None else Path(model)
        self.model_config = _readable(load_model_config(self.model_dir), self.config)
        self.rule = prefill_rule(self.model_config, self.config.prefill, self.config.keep)
        self._weights: dict[str, LoadedModel] = {}
        self._bind(_ops(self.config))

    def with_config(self, config: EngineConfig) -> LLM:
        """Another engine on the same weights.

        They are loaded again only for a profile whose kernels want them packed in another way, and once.

        Raises:
            ConfigError: the configuration asks for another kernel set or device.
        """
        here, there = (f"{c.backend} on {c.device}{', long' * c.allow_long}" for c in (self.config, config))
        if here != there:
            raise ConfigError(f"weights are packed for {here}; load the model for {there}")
        twin = LLM.__new__(LLM)
        twin.config, twin.model_dir, twin.model_config = config, self.model_dir, self.model_config
        twin.rule = prefill_rule(self.model_config, config.prefill, config.keep)
        twin._weights = self._weights
        twin._bind(_ops(config))
        return twin

    def _bind(self, ops: Ops) -> None:
        if ops.packing not in self._weights:
            self._weights[ops.packing] = LoadedModel(self.model_dir, self.model_config, ops)
        self._loaded = self._weights[ops.packing]
        self._model = self._loaded.backbone.bound_to(ops)

    @property
    def ops(self) -> Ops:
        """The kernel set under this configuration."""
        return self._model.ops

    def with_model(self, wrap: Callable[[Transformer], Transformer]) -> LLM:
        """Another engine on the same weights whose backbone is ``wrap`` of this one's, for verification."""
        twin = self.with_config(self.config)
        twin._model = wrap(self._model)
        return twin

    @cached_property
    def _draft(self) -> Draft:
        return self._loaded.draft.bound_to(self._model)

    @cached_property
    def _drafter(self) -> Drafter | None:
        return ModelDrafter(self._draft, self.rule) if self.config.speculation.is_on else None

    def with_drafter(self, drafter: Drafter) -> LLM:
        """Another engine on the same weights that takes its drafts from ``drafter``."""
        twin = self.with_config(self.config)
        twin._drafter = drafter
        return twin

    @property
    def model_digest(self) -> str:
        """SHA-256 (hex) of the checkpoint's configuration, tokenizer and weights."""
        return self._loaded.digest

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult | RequestFailure]:
        """Log-probabilities of every request, in order; a bad request yields a failure in its place."""
        return list(self.score_iter(requests))

    def score_iter(self, requests: Iterable[ScoreRequest]) -> Iterator[ScoreResult | RequestFailure]:
        """As ``score``, lazily.

        Requests are read, run together up to ``max_batch_tokens``, and answered in order.
        """
        return self._scorer.score(requests)

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self._model, self.rule, self.config)

    @cached_property
    def _core(self) -> EngineCore:
        config, on_device = self.config, self.config.device is Device.CUDA
        limits = Limits(
            max_rows=config.max_batch_tokens,
            max_chunk=config.max_chunk_tokens,
            max_sequences=config.max_num_seqs,
        )
        sizes = CoreConfig(
            limits=limits,
            num_blocks=config.num_cache_blocks,
            prefix_caching=config.prefix_caching,
            speculation=config.speculation,
            asynchronous=on_device if config.asynchronous is None else config.asynchronous,
            graphs=config.records_steps,
        )
        return EngineCore(self._model, self.rule, sizes, self._drafter)

    @property
    def draft_stats(self) -> DraftStats | None:
        """What came of all drafts so far; None without speculation."""
        control = self._core.speculation
        return None if control is None else control.stats

    @property
    def num_steps_ahead(self) -> int:
        """Generation steps that were planned while another ran."""
        return self._core.scheduler.stats.num_ahead

    def generate(
        self, requests: Sequence[GenerateRequest], observe: Observer | None = None
    ) -> list[tuple[Completion, ...] | RequestFailure]:
        """Continue every prompt; its samples in order, or a failure in the place of a bad request.

        Caches of common prefixes stay for later calls. ``observe`` is shown every logits row sampled from.
        """
        self._core.observe = observe
        try:
            return collect(self._core, requests)
        finally:
            self._core.observe = None

    def generate_iter(self, requests: Sequence[GenerateRequest]) -> Iterator[TokenRecord | RequestFailure]:
        """As ``generate``, token by token as they are sampled, all requests together."""
        return stream(self._core, requests)

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftResult | RequestFailure]:
        """Draft blocks for every request, in order, after one prefill of all of them together."""
        with torch_threads_of(self._model.ops):
            return self._drafted(requests)

    def _drafted(self, requests: Sequence[DraftRequest]) -> list[DraftResult | RequestFailure]:
        checked = [checked_ids(request, self.model_config) for request in requests]
        sequences = [ids for ids in checked if not isinstance(ids, RequestFailure)]
        wave = Wave(self._model, self._draft, self.rule, sequences)
        last = torch.zeros(len(sequences), self.model_config.hidden_size, device=self.ops.device)
        for rows in wave.run(self.config.max_batch_tokens, self.config.max_chunk_tokens):
            for row, (sequence, position) in enumerate(zip(rows.sequence, rows.positions, strict=True)):
                if position + 1 == len(sequences[sequence]):
                    last[sequence] = rows.normed[row]
        results: list[DraftResult | RequestFailure] = []
        number = 0
        for request, ids in zip(requests, checked, strict=True):
            if isinstance(ids, RequestFailure):
                results.append(ids)
            else:
                results.append(self._propose(request, ids, wave, number, last[number : number + 1]))
                number += 1
        return results

    def _propose(
        self, request: DraftRequest, ids: Int64, wave: Wave, number: int, last: torch.Tensor
    ) -> DraftResult:
        positions = np.array(list(request.anchors) or [len(ids)], np.int64)
        greedy = int(self._model.logits(last)[0].argmax()) if (positions == len(ids)).any() else 0
        golden = np.array([ids[p] if p < len(ids) else greedy for p in positions], np.int64)
        slots = np.full_like(positions, number)
        low = np.full_like(positions, self.rule.low(len(ids)))
        anchors = Anchors(*(torch.from_numpy(part) for part in (golden, positions, slots, low)))
        out = self._draft.propose(moved(anchors, self.ops.device), wave.caches)()
        return DraftResult(
            request_id=request.request_id,
            anchors=positions.astype(np.int32),
            tokens=out.tokens.cpu().numpy().astype(np.int32),
            confidences=out.confidences.cpu().numpy(),
            confidence_logits=out.confidence_logits.cpu().numpy(),
            base_logits=out.base_logits.cpu().numpy() if request.return_logits else None,
            logits=out.logits.cpu().numpy() if request.return_logits else None,
        )

    def prefill_state(self, token_ids: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """Every cache row that a prefill leaves for decoding, by name (``window.7``, ``main.5``, ...).

        Packed bytes, as ``engine.state.cache_rows`` describes them.

        Raises:
            InputError: the ids cannot be run.
        """
        with torch_threads_of(self._model.ops):
            wave = self._wave(token_ids)
            return cache_rows(wave, self.config.max_batch_tokens, self.config.max_chunk_tokens)

    def observe(self, token_ids: Sequence[int], probe: Probe) -> None:
        """Run one sequence and show ``probe`` every named tensor of the pass (see ``engine.tracing``)."""
        with torch_threads_of(self._model.ops):
            wave = self._wave(token_ids)
            for _ in wave.run(self.config.max_batch_tokens, self.config.max_chunk_tokens, probe):
                pass

    def _wave(self, token_ids: Sequence[int]) -> Wave:
        ids = checked_ids(DraftRequest(request_id="sequence", token_ids=token_ids), self.model_config)
        if isinstance(ids, RequestFailure):
            raise InputError(ids.reason)
        return Wave(self._model, self._draft, self.rule, [ids])
