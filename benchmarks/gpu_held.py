"""Decoding at a constant number of sequences: when some end, as many new ones begin.

A batch of equal requests that drains says little of a batch size: with drafts its sequences end one by one,
and the last ones decode alone. Here only turns behind turns count in which nearly all decode, whoever they
are, so the slow ones weigh as they do in service. Prompts are read between them, off the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from gpu_speculation import BATCHES
from turn_log import LoggedRunner, log_of

from deepinfer.engine.api import EngineConfig, GenerateRequest, SamplingParams
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.options import Speculation
from deepinfer.eval.bench_speculation import SpeculationBench, _prompts

POLICIES = ("off", "fixed:1", "fixed:2", "fixed", "confidence")
_NEW_TOKENS = 96


@dataclass
class Subject:
    """A core that is kept full.

    Attributes:
        core, log: it, and its steps.
        texts: prompts without end.
        batch: sequences.
        speeds: tokens a second of measured stretches.
    """

    core: EngineCore
    log: LoggedRunner
    texts: Iterator[Sequence[int]]
    batch: int
    speeds: list[float] = field(default_factory=list)
    num_added: int = 0
    tokens: int = 0
    shares: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def fewest(self) -> int:
        """Sequences below which new ones are added: a quarter may be missing, so that prompts are few."""
        return self.batch * 3 // 4 + 1

    def stretch(self, steps: int, is_measured: bool) -> None:
        """Decode so many steps; the first ones, in flight or alone, do not count."""
        first = len(self.log.steps) + 2
        for _ in range(steps):
            if len(self.core._live) < self.fewest:
                self._fill()
            self.core.step()
        if not is_measured:
            return
        landed = [step for step in self.log.steps[first:] if "ms" in step]
        counted = [
            step
            for before, step in pairwise(landed)
            if before["kind"] == step["kind"] == "TurnRun" and step["how"] == "played"
            if step["sequences"] >= self.fewest
        ]
        if not counted:  # turns that are not recorded say nothing
            return
        self.tokens += sum(step["tokens"] for step in counted)
        self.shares += sum(step["sequences"] for step in counted)
        self.times += [step["ms"] for step in counted]
        # a turn of a few sequences less takes as long, so what one gives is scaled to all of them
        each = sum(step["tokens"] for step in counted) / sum(step["sequences"] for step in counted)
        self.speeds.append(1e3 * self.batch * each / fmean(step["ms"] for step in counted))

    def _fill(self) -> None:
        params = SamplingParams(temperature=0.0, seed=7, max_tokens=_NEW_TOKENS, ignore_eos=True)
        for _ in range(self.batch - len(self.core._live)):
            ids = tuple(next(self.texts))
            self.core.add(GenerateRequest(request_id=str(self.num_added), token_ids=ids, params=params))
            self.num_added += 1


def held_speed(
    config: EngineConfig, seconds: float, batches: Sequence[int] = BATCHES, rounds: int = 9, steps: int = 80
) -> dict[str, Any]:
    """Tokens a second of every policy, medians of alternating stretches; ``seconds`` bound them."""
    base = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
    prompts = [_prompts(base, name, SpeculationBench(), 64) for name in ("prose", "code", "technical")]
    pool = [ids for group in zip(*prompts, strict=True) for ids in group]
    page = [
        "| sequences | policy | tokens/s | of plain | tokens a step | ms a turn | graphs | of these late |"
    ]
    page.append("|---" * 8 + "|")
    seen, figures, started = [], {}, time.perf_counter()
    for number, batch in enumerate(batches):
        subjects = {}
        for policy in POLICIES:
            named = Speculation.from_text(policy)
            core = base.with_config(replace(base.config, speculation=named, asynchronous=True))._core
            subjects[policy] = Subject(core, log_of(core), _endless(pool), batch)
            subjects[policy].stretch(8 * steps if policy == "confidence" else 2 * steps, False)
        graphs = {policy: subject.core.launcher.num_recorded for policy, subject in subjects.items()}
        for _ in range(rounds):
            for subject in subjects.values():
                subject.stretch(steps, True)
            if time.perf_counter() - started > seconds * (number + 1) / len(batches):
                break
        subjects = {policy: subject for policy, subject in subjects.items() if subject.speeds}
        if "off" not in subjects:
            seen.append(f"{batch}: no recorded turns")
            continue
        speeds = {policy: median(subject.speeds) for policy, subject in subjects.items()}
        for policy, subject in subjects.items():
            count = subject.core.launcher.num_recorded
            cells = [
                *(str(batch), policy, f"{speeds[policy]:.0f}", f"{speeds[policy] / speeds['off']:.3f}"),
                *(f"{subject.tokens / subject.shares:.2f}", f"{median(subject.times):.2f}"),
                *(str(count), str(count - graphs[policy])),
            ]
            page.append(f"| {' | '.join(cells)} |")
        seen.append(f"{batch}: " + ", ".join(f"{p} {v / speeds['off']:.3f}" for p, v in speeds.items()))
        figures[batch] = {policy: subject.speeds for policy, subject in subjects.items()}
    return {"verdict": "measured", "seen": "; ".join(seen), "page": page, "figures": figures}


def _endless(pool: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    while True:
        yield from pool
