"""Runs the checks in an order that lets each one stand on those before it, and gives the verdict."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from deepinfer import __version__
from deepinfer.engine.api import EngineConfig
from deepinfer.engine.errors import ConfigError, DeepInferError, NonFiniteError
from deepinfer.eval.provenance import device_name
from deepinfer.verify.check import Check
from deepinfer.verify.checks import (
    asynchrony,
    baselines,
    batch,
    chunks,
    decode,
    graphs,
    grid,
    kernels,
    nonfinite,
    packing,
    preemption,
    prefix,
    process,
    profiles,
    reference,
    rerun,
    seeds,
    speculation,
    threads,
    yoco,
    yoco_draft,
    yoco_metadata,
)
from deepinfer.verify.context import CheckContext, full_requests
from deepinfer.verify.engine_subject import EngineSubject
from deepinfer.verify.gate import BaselineGate, bundled_gate
from deepinfer.verify.live import open_context
from deepinfer.verify.pack import fingerprint, write_pack
from deepinfer.verify.perplexity_bars import PerplexityBar, reference_bars, sample_bars
from deepinfer.verify.report import listing_records
from deepinfer.verify.result import CheckResult, Status, Verdict
from deepinfer.verify.scenarios import SCENARIOS
from deepinfer.verify.size import Size

# Non-finite values make every comparison meaningless, and a batch that differs says nothing about batching as
# long as the same question asked twice differs too: hence this order.
CHECKS: tuple[Check, ...] = (
    nonfinite.CHECK,
    rerun.CHECK,
    reference.CHECK,
    kernels.CHECK,
    batch.CHECK,
    chunks.CHECK,
    threads.CHECK,
    graphs.CHECK,
    prefix.CHECK,
    preemption.CHECK,
    speculation.CHECK,
    asynchrony.CHECK,
    decode.CHECK,
    seeds.CHECK,
    packing.CHECK,
    profiles.CHECK,
    process.CHECK,
    yoco_metadata.CHECK,
    yoco.CHECK,
    yoco_draft.CHECK,
    grid.CHECK,
    baselines.CHECK,
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """What to verify.

    Attributes:
        model: checkpoint folder, None for the bundled model.
        engine: the configuration whose promise is checked.
        checks: names of the checks to run; empty runs all.
        tier: run the YOCO check of this tier only.
        baselines: which baselines are checked, and whether they must exist.
        scenarios: names of scenarios to run instead, or ``all``.
        size: how much every check looks at.
        pack: file for the failing cases, written if there are any.
    """

    model: Path | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    checks: tuple[str, ...] = ()
    tier: str | None = None
    baselines: BaselineGate = field(default_factory=bundled_gate)
    scenarios: tuple[str, ...] = ()
    size: Size = Size.DEFAULT
    pack: Path | None = None


def describe_checks() -> list[dict[str, str | bool | None]]:
    """Every check as a record, in the order they run, then every scenario."""
    return listing_records([*CHECKS, *(scenario.as_check() for scenario in SCENARIOS)])


def select_checks(config: VerifyConfig) -> tuple[Check, ...]:
    """The checks that a configuration asks for, in the order they run.

    Raises:
        ConfigError: a name that is no check, or a check that is not of the tier asked for.
    """
    if config.scenarios:
        if config.checks or config.tier is not None:
            raise ConfigError("scenarios are run by themselves; drop --check and --tier")
        return select_scenarios(config.scenarios)
    known = {check.name: check for check in CHECKS}
    unknown = [name for name in config.checks if name not in known]
    if unknown:
        raise ConfigError(f"unknown check {unknown[0]!r}; known: {', '.join(known)}")
    chosen = tuple(
        check
        for check in CHECKS
        if (not config.checks or check.name in config.checks) and config.tier in {None, check.tier}
    )
    if not chosen:
        raise ConfigError(
            f"none of the checks {', '.join(config.checks)} is of tier {config.tier}; drop one option"
        )
    return chosen


def select_scenarios(names: Sequence[str]) -> tuple[Check, ...]:
    """The scenarios of these names as checks; ``all`` is all of them.

    Raises:
        ConfigError: an unknown name.
    """
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in names if name not in known and name != "all"]
    if unknown:
        raise ConfigError(f"unknown scenario {unknown[0]!r}; known: all, {', '.join(known)}")
    return tuple(s.as_check() for name, s in known.items() if name in names or "all" in names)


def run_verify(
    config: VerifyConfig,
    progress: Progress = lambda what, done, total: None,
    open_context: Callable[[Path | None, EngineConfig, Size], CheckContext] = open_context,
) -> Verdict:
    """Run the checks that were asked for.

    Args:
        config: what to verify.
        progress: told before each check and at the end.
        open_context: opens the model; tests give their own.

    Raises:
        DeepInferError: the configuration, the model or the bundled text cannot be used at all.
    """
    checks = select_checks(config)
    context = open_context(config.model, config.engine, config.size)
    context.baseline_gate = config.baselines
    try:
        return _verdict(config, checks, context, progress)
    finally:
        context.stop_elsewhere()


def _verdict(
    config: VerifyConfig, checks: Sequence[Check], context: CheckContext, progress: Progress
) -> Verdict:
    started_s = time.perf_counter()
    notes: list[str] = []
    if process.CHECK in checks and process.CHECK.cases is not None:
        first = next(iter(process.CHECK.cases(context)))
        context.begin_elsewhere(first.right)  # it starts up on one core while this process does on another
    if any(check.needs_model for check in checks):
        progress("loading the model", 0, len(checks))
        with suppress(NonFiniteError):  # a verdict, which the first check will reach
            _ = context.base
            progress("first request (compiles the kernels once per version)", 0, len(checks))
            notes.append(f"kernels ready after {_first_request_s(context):.1f} s")
    results: list[CheckResult] = []
    for index, check in enumerate(checks):
        progress(check.name, index, len(checks))
        context.progress = partial(_progress_within, progress, index, len(checks))
        result = _run_check(check, context, results)
        if result.status is Status.NOT_APPLICABLE and check.name in config.checks:
            detail = f"asked for, and cannot run here: {result.detail}"
            result = replace(result, status=Status.SKIPPED, detail=detail)
        results.append(result)
    failures = [result.failure.case for result in results if result.failure is not None]
    if config.pack is not None and failures:
        try:
            write_pack(config.pack, context, model_digest(context), failures)
            notes.append(
                f"{len(failures)} failing cases are in {config.pack}; deepinfer replay runs them again"
            )
        except OSError as error:  # red already, and more worth than a file
            notes.append(f"the failing cases could not be written: {config.pack}: {error.strerror or error}")
    bars = _bars(context, results) if checks == CHECKS else ()
    progress("done", len(checks), len(checks))
    return Verdict(
        results=tuple(results),
        subject=_subject(context),
        notes=tuple(notes),
        perplexity=bars,
        fingerprint=fingerprint(),
        seconds=time.perf_counter() - started_s,
    )


def _bars(context: CheckContext, results: list[CheckResult]) -> tuple[PerplexityBar, ...]:
    if any(result.status is Status.INCONCLUSIVE for result in results):
        return ()
    bars = tuple(bar for result in results for bar in result.perplexity)
    references = () if context.size is Size.QUICK else reference_bars(context)
    return (*(bars or sample_bars(context)), *references)


def _progress_within(progress: Progress, index: int, total: int, what: str) -> None:
    progress(what, index, total)


def model_digest(context: CheckContext) -> str:
    """SHA-256 of the checkpoint, empty for an engine that does not know it."""
    return context.base.llm.model_digest if isinstance(context.base, EngineSubject) else ""


def _first_request_s(context: CheckContext) -> float:
    """Seconds that one short request takes; a first use compiles, which is no check's own time."""
    started_s = time.perf_counter()
    context.base.score(full_requests(context.samples([64])))
    return time.perf_counter() - started_s


def _run_check(check: Check, context: CheckContext, before: list[CheckResult]) -> CheckResult:
    """Run one check; what stops it leaves the question open, and never hides the other checks."""
    if check.needs_model and any(result.status is Status.INCONCLUSIVE for result in before):
        return CheckResult(name=check.name, status=Status.SKIPPED, detail="not run: values are not finite")
    started_s = time.perf_counter()
    try:
        result = check.run(context)
    except NonFiniteError as error:
        result = CheckResult(name=check.name, status=Status.INCONCLUSIVE, detail=str(error))
    except DeepInferError as error:
        result = CheckResult(name=check.name, status=Status.SKIPPED, detail=f"could not run: {error}")
    return replace(result, seconds=time.perf_counter() - started_s)


def _subject(context: CheckContext) -> dict[str, str]:
    """What was verified; the first line of every report."""
    engine = context.engine
    return {
        "deepinfer": __version__,
        "model": context.model_name,
        "profile": engine.profile.value,
        "caches": engine.cache_format.value,
        "prefill": engine.prefill.value,
        "device": device_name(engine),
        "backend": engine.backend,
        "threads": str(engine.num_threads or "all"),
        "torch": version("torch"),
        "machine": f"{platform.machine()} {platform.system()}",
    }
