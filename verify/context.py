"""What every check works with: the model under test, opened in different ways, and bundled text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from deepinfer.engine.api import EngineConfig, RequestFailure, ScoreRequest, ScoreResult
from deepinfer.engine.model_config import ModelConfig
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.verify.case import Answer, Ask, Place, Trial
from deepinfer.verify.child import Elsewhere
from deepinfer.verify.gate import bundled_gate
from deepinfer.verify.size import Size
from deepinfer.verify.subject import PlanRows, Sample, Subject, SubjectFactory
from deepinfer.verify.trial_run import TrialRunner

# Different lengths, none a multiple of another: they end inside windows, tiles and compression groups.
BASE_LENGTHS = (300, 257, 129, 383, 191)
QUICK_LENGTHS = (130, 67)
MAX_VARIED = 2
BUNDLED = "(bundled)"


class CheckContext:
    """One model, one configuration, and the engines that checks open from them.

    Attributes:
        model: the model's configuration.
        model_name: what a report calls it.
        engine: the configuration that is verified; checks vary it along their axis.
        reference_dir: reference outputs of this very model, or None.
        plan_rows: the engine's planning of truncated prefill for this model.
        open_scorer: the engine as configured, as the evaluation sees it; None for an engine without one.
        baseline_gate: which baselines are checked, and whether they must exist; the runner sets it.
        size: how much the checks look at.
        progress: told in a few words what is being run; does nothing unless someone listens.
    """

    def __init__(
        self,
        *,
        model: ModelConfig,
        engine: EngineConfig,
        open_subject: SubjectFactory,
        plan_rows: PlanRows,
        model_name: str,
        load_documents: Callable[[], Sequence[Sample]],
        reference_dir: Path | None,
        open_scorer: Callable[[], Scorer] | None = None,
        open_unpacked: SubjectFactory | None = None,
        start_elsewhere: Callable[[Trial, EngineConfig], Elsewhere] | None = None,
        size: Size = Size.DEFAULT,
    ) -> None:
        """Nothing is opened yet.

        ``open_unpacked`` opens an engine that reads its caches from decoded values, ``start_elsewhere`` has
        a trial run in another process; without them the checks that need them do not apply.
        """
        self.model = model
        self.model_name = model_name
        self.engine = engine
        self._load_documents = load_documents
        self.reference_dir = reference_dir
        self.plan_rows = plan_rows
        self.open_scorer = open_scorer
        self.baseline_gate = bundled_gate()
        self._open_subject = open_subject
        self.open_unpacked, self.start_elsewhere = open_unpacked, start_elsewhere
        self.size = size
        self.progress: Callable[[str], None] = lambda what: None
        self._started: dict[Trial, Elsewhere] = {}
        self._varied: dict[EngineConfig, Subject] = {}

    @cached_property
    def documents(self) -> tuple[Sample, ...]:
        """Whole bundled documents as token ids; read when first needed."""
        return tuple(self._load_documents())

    @cached_property
    def base(self) -> Subject:
        """The engine as configured, opened once."""
        return self._open_subject(self.engine)

    @property
    def options(self) -> str:
        """What a command must be told to work with this model, configuration and size."""
        words = [] if self.size is Size.DEFAULT else [f"--{self.size}"]
        default = EngineConfig()
        if self.engine.profile is not default.profile:
            words.append(f"--profile {self.engine.profile}")
        if self.engine.device is not default.device:
            words.append(f"--device {self.engine.device}")
        if self.engine.num_threads != default.num_threads:
            words.append(f"--threads {self.engine.num_threads}")
        if not self.model_name.endswith(BUNDLED):
            words.append(f"--model {self.model_name}")
        return "".join(f" {word}" for word in words)

    @cached_property
    def trials(self) -> TrialRunner:
        """Runs sides of cases."""
        return TrialRunner(self.engine, self.open_for, self._run_elsewhere)

    def open_for(self, trial: Trial) -> Subject:
        """The engine of a trial; one that generates, or is asked to be reopened, has caches of its own."""
        config = trial.config(self.engine)
        if trial.unpacked:
            assert self.open_unpacked is not None, "checks ask first"
            return self.open_unpacked(config)
        if trial.ask is Ask.GENERATE or trial.place is Place.REOPENED:
            return self._open_subject(config)  # nothing cached by an earlier trial
        return self.varied(**{name: getattr(config, name) for name, _ in trial.engine})

    def begin_elsewhere(self, trial: Trial) -> None:
        """Let another process begin with a trial whose answer will be asked for later."""
        if self.start_elsewhere is not None:
            self._started[trial] = self.start_elsewhere(trial, self.engine)

    def stop_elsewhere(self) -> None:
        """End the processes whose answers nobody will ask for."""
        while self._started:
            self._started.popitem()[1].stop()

    def _run_elsewhere(self, trial: Trial, config: EngineConfig) -> Answer:
        if trial in self._started:
            return self._started.pop(trial).answer()
        assert self.start_elsewhere is not None, "checks ask first"
        return self.start_elsewhere(trial, config).answer()

    def varied(self, **changes: Any) -> Subject:
        """The engine with some fields of its configuration changed.

        The last two are kept, so that memory holds three engines at most.
        """
        config = replace(self.engine, **changes)
        if config == self.engine:
            return self.base
        if config not in self._varied:
            for oldest in list(self._varied)[: 1 - MAX_VARIED]:
                del self._varied[oldest]
            self._varied[config] = self._open_subject(config)
        return self._varied[config]

    def reopened(self) -> Subject:
        """The engine as configured, opened afresh."""
        self._varied.clear()
        return self._open_subject(self.engine)

    def samples(self, lengths: Sequence[int]) -> list[Sample]:
        """Beginnings of the documents, one per length, going through the documents in turn."""
        return [self.sample(index, length) for index, length in enumerate(lengths)]

    def sample(self, index: int, length: int, start: int = 0) -> Sample:
        """``length`` token ids of document ``index`` (modulo their number) from ``start`` on.

        The length is cut to what the document and the model's positions allow; ``start`` wraps around so that
        at least one token is left.
        """
        document = self.documents[index % len(self.documents)]
        start %= len(document.token_ids)
        stop = start + min(length, self.model.max_position_embeddings)
        return Sample(
            sample_id=f"{document.sample_id}[{start}:{stop}]",
            token_ids=document.token_ids[start:stop],
            workload=document.workload or document.sample_id,
        )

    @cached_property
    def base_samples(self) -> list[Sample]:
        """The samples that the checks of the whole engine share."""
        return self.samples(self.size.pick(QUICK_LENGTHS, BASE_LENGTHS, BASE_LENGTHS))

    @cached_property
    def base_results(self) -> list[ScoreResult | RequestFailure]:
        """Scores of `base_samples` by the engine as configured, with every logits row."""
        return self.base.score(full_requests(self.base_samples))


def full_requests(samples: Sequence[Sample]) -> list[ScoreRequest]:
    """Requests for every log-probability and every logits row of the samples."""
    return [
        ScoreRequest(request_id=sample.sample_id, token_ids=sample.token_ids, return_logits=True)
        for sample in samples
    ]
