"""The real engine as a subject of verification, on the bundled text of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepinfer.engine.api import EngineConfig, PrefillMode
from deepinfer.engine.bundled import bundled_model_dir
from deepinfer.engine.config import load_model_config
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.prefill import prefill_rule, visible_entries
from deepinfer.engine.step_plan import Chunk, blocks_for, plan_step
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.tokenizer import TextTokenizer
from deepinfer.eval.workload import BUNDLED_WORKLOADS, load_workload
from deepinfer.verify.case import Trial
from deepinfer.verify.child import Elsewhere
from deepinfer.verify.context import BUNDLED, CheckContext
from deepinfer.verify.size import Size
from deepinfer.verify.subject import DecoderRows, PlannedChunk, PlanRows, Sample

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM
    from deepinfer.verify.engine_subject import EngineSubject


def plan_rows_of(model: ModelConfig) -> PlanRows:
    """The engine's planning of a step for a model."""

    def plan_rows(chunks: Sequence[PlannedChunk], keep: int, mode: PrefillMode) -> DecoderRows:
        planned = [
            Chunk(
                token_ids=np.zeros(chunk.num_tokens, dtype=np.int64),
                start=chunk.start,
                end=chunk.end,
                prompt_length=chunk.num_tokens,
                slot=slot,
                blocks=np.arange(blocks_for(chunk.num_tokens), dtype=np.int64),
            )
            for slot, chunk in enumerate(chunks)
        ]
        step = plan_step(planned, prefill_rule(model, mode, keep), history=1)
        rows = step.decoder
        base = np.array([chunk.base for chunk in chunks], dtype=np.int64)
        # the window buffer of a step begins with histories from the rings; name positions, not places in it
        buffer = np.concatenate(
            [base[rows.history_slot] + rows.history_position, base[rows.chunk] + rows.positions]
        )
        return DecoderRows(
            kept=step.kept,
            positions=rows.positions,
            window=np.where(rows.window >= 0, buffer[rows.window], -1),
            slots=np.where(rows.kept, base[rows.chunk] + rows.positions, -1),
            visible=visible_entries(rows.positions, 1),
        )

    return plan_rows


def bundled_documents(model_dir: Path, model: ModelConfig) -> list[Sample]:
    """The first document of each bundled workload, as token ids of the checkpoint's own tokenizer.

    Raises:
        InputError: the checkpoint has no tokenizer that spells these texts.
    """
    tokenizer = TextTokenizer(model_dir, model.bos_token_id, model.vocab_size)
    documents = {name: load_workload(name).documents[0] for name in BUNDLED_WORKLOADS}
    return [
        Sample(
            sample_id=document.sample_id,
            token_ids=tuple(tokenizer.encode(document.text, document.sample_id).token_ids.tolist()),
            workload=name,
        )
        for name, document in documents.items()
    ]


class Opener:
    """Opens contexts on one checkpoint folder, whose weights are loaded once for all of them."""

    def __init__(self, model_dir: Path | None) -> None:
        """``None`` is the bundled checkpoint; weights and texts are read when first needed.

        Raises:
            ConfigError: the folder's config.json is unusable.
        """
        self.folder = bundled_model_dir() if model_dir is None else model_dir
        self.model = load_model_config(self.folder)
        self.model_name = f"{self.folder.name} {BUNDLED}" if model_dir is None else str(self.folder)
        self._opened: list[LLM] = []

    def subject(self, config: EngineConfig) -> EngineSubject:
        """The engine with caches of its own."""
        from deepinfer.engine.llm import LLM  # brings torch, slow to import
        from deepinfer.verify.engine_subject import EngineSubject

        where = config.device, config.backend
        if not self._opened or (self._opened[0].config.device, self._opened[0].config.backend) != where:
            self._opened.insert(0, LLM(self.folder, config))
        return EngineSubject(self._opened[0].with_config(config))

    def unpacked_subject(self, config: EngineConfig) -> EngineSubject:
        """The engine with caches that are never decoded."""
        from deepinfer.engine.unpacked import with_unpacked_caches

        return self.subject(config).wrapped(with_unpacked_caches)

    @cached_property
    def documents(self) -> list[Sample]:
        """See ``bundled_documents``."""
        return bundled_documents(self.folder, self.model)

    def context(
        self, engine: EngineConfig, size: Size = Size.DEFAULT, *, fault: str | None = None
    ) -> CheckContext:
        """What the checks work with; ``fault`` is also seeded into other processes that they start."""

        def elsewhere(trial: Trial, config: EngineConfig) -> Elsewhere:
            return Elsewhere(self.folder, trial, config, fault)

        def scorer() -> Scorer:
            from deepinfer.eval.engines.native import NativeScorer  # brings torch too

            self.subject(engine)
            return NativeScorer.over(self._opened[0].with_config(engine))

        references = self.folder / "reference"
        return CheckContext(
            model=self.model,
            model_name=self.model_name,
            engine=engine,
            open_subject=self.subject,
            plan_rows=plan_rows_of(self.model),
            load_documents=lambda: self.documents,
            open_scorer=scorer,
            reference_dir=references if (references / "manifest.json").is_file() else None,
            open_unpacked=self.unpacked_subject,
            start_elsewhere=elsewhere,
            size=size,
        )


def open_context(model_dir: Path | None, engine: EngineConfig, size: Size = Size.DEFAULT) -> CheckContext:
    """Open a checkpoint folder (None: the bundled one); weights and texts are read when first needed.

    Raises:
        ConfigError: the folder's config.json is unusable.
    """
    return Opener(model_dir).context(engine, size)
