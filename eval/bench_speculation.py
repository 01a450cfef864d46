"""``deepinfer bench --speculation``: what drafts bring and cost, prompt by prompt beside plain decoding.

Variants take turns on every group of prompts, so that a machine that slows down slows all of them. All must
give the bytes of plain decoding: tokens, and both log-probabilities of each.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deepinfer.engine.api import (
    Device,
    EngineConfig,
    GenerateRequest,
    RequestFailure,
    SamplingParams,
    TokenRecord,
)
from deepinfer.engine.errors import InputError
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.drafter import KnownContinuation
from deepinfer.engine.speculation.options import NO_SPECULATION, Speculation
from deepinfer.engine.speculation.stats import DraftStats
from deepinfer.eval.tokenizer import TextTokenizer
from deepinfer.eval.workload import load_workload

PLAIN, KNOWN, ASYNC = "plain", "known", "plain-async"
"""One token a step; every draft right; one token a step, planned ahead."""
_UNTIMED = 2
"""Runs before the clock starts on a device, where the first step of a shape compiles, the second records."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class SpeculationBench:
    """What to measure.

    Attributes:
        workloads: bundled workloads that prompts come from.
        batches: numbers of sequences that decode together.
        policies: ``Speculation`` as text; the first one's statistics are reported.
        prompt_tokens, new_tokens: of every request.
        temperature: of every request; 0 is greedy.
        rounds: times that every variant runs, in turns, back and forth; the fastest one counts, since
            whatever else the machine does can only add seconds. What comes of drafts is counted over all.
    """

    workloads: tuple[str, ...] = ("prose", "technical", "code", "longctx", "unicode")
    batches: tuple[int, ...] = (1,)
    policies: tuple[str, ...] = ("fixed", "fixed:2", "confidence")
    prompt_tokens: int = 64
    new_tokens: int = 64
    temperature: float = 0.0
    rounds: int = 9


@dataclass
class Group:
    """Sums over the runs of one workload, or one batch size: what comes after each request's first token.

    Attributes:
        num_tokens: variant -> tokens that were decoded.
        seconds: variant -> seconds that took.
        same_bytes: whether every variant gave the bytes of plain decoding.
    """

    num_tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    same_bytes: bool = True

    def speedup(self, variant: str) -> float:
        """Above 1, the variant is faster than plain decoding."""
        return self.tokens_per_s(variant) / self.tokens_per_s(PLAIN)

    def tokens_per_s(self, variant: str) -> float:
        """Decoding speed of a variant; reading the prompts is left out."""
        return self.num_tokens[variant] / self.seconds[variant]


@dataclass(frozen=True, kw_only=True)
class SpeculationResult:
    """Figures of one run.

    Attributes:
        bench: what was measured.
        batches: batch size -> all its runs.
        workloads: workload -> its runs at the smallest batch.
        stats: workload -> what came of the drafts of the first policy there.
        elapsed_s: seconds of the whole run.
    """

    bench: SpeculationBench
    batches: Mapping[int, Group]
    workloads: Mapping[str, Group]
    stats: Mapping[str, DraftStats]
    elapsed_s: float

    @property
    def same_bytes(self) -> bool:
        """Whether nothing differed anywhere."""
        return all(group.same_bytes for group in self.batches.values())


def run_speculation_bench(
    model: Path | None, engine: EngineConfig, bench: SpeculationBench, progress: Progress
) -> SpeculationResult:
    """Measure every policy of ``bench`` beside plain decoding and known drafts.

    Raises:
        InputError: a prompt cannot be run.
        DeepInferError: the model cannot be used, or has no draft stages.
    """
    started_s = time.perf_counter()
    base = LLM(model, replace(engine, prefix_caching=False, speculation=NO_SPECULATION, asynchronous=False))
    prompts = {name: _prompts(base, name, bench, max(bench.batches)) for name in bench.workloads}
    subjects = {PLAIN: base, ASYNC: base.with_config(replace(base.config, asynchronous=True))}
    for policy in bench.policies:
        subjects[policy] = _speculating(base, policy)
    batches = {batch: Group() for batch in bench.batches}
    workloads = {name: Group() for name in bench.workloads}
    stats: dict[str, DraftStats] = {}
    for number, (name, texts) in enumerate(prompts.items()):
        subjects[bench.policies[0]] = _speculating(base, bench.policies[0])  # counts this workload alone
        for batch in sorted(bench.batches):
            progress(f"{name}, batch {batch}", number, len(prompts))
            requests = _requests(texts, bench)
            count = min(len(requests), max(batch, 2))
            for first in range(0, count, batch):
                sums = [batches[batch]] + [workloads[name]] * (batch == min(bench.batches))
                _run(subjects, bench, requests[first : first + batch], sums)
            if batch == min(bench.batches):
                found = subjects[bench.policies[0]].draft_stats
                assert found is not None, "the policy speculates"
                stats[name] = found.copy()
    progress("done", len(prompts), len(prompts))
    return SpeculationResult(
        bench=bench,
        batches=batches,
        workloads=workloads,
        stats=stats,
        elapsed_s=time.perf_counter() - started_s,
    )


def _speculating(base: LLM, policy: str) -> LLM:
    return base.with_config(replace(base.config, speculation=Speculation.from_text(policy)))


def _run(
    subjects: Mapping[str, LLM],
    bench: SpeculationBench,
    requests: Sequence[GenerateRequest],
    sums: Sequence[Group],
) -> None:
    """Run one group of requests with every variant, plain decoding first; warm up before the clock starts."""
    wanted = answers(subjects[PLAIN], requests)
    fixed = subjects[bench.policies[0]]
    known = fixed.with_drafter(KnownContinuation(wanted.token_ids()))
    variants = {**subjects, KNOWN: known}
    for subject in variants.values():
        for _ in range(_UNTIMED if subject.config.device is Device.CUDA else 0):
            answers(subject, requests)
    rounds: list[dict[str, Answers]] = []
    for number in range(bench.rounds):
        order = list(variants) if number % 2 == 0 else list(reversed(variants))
        rounds.append({name: answers(variants[name], requests) for name in order})
    for name in variants:
        fastest = min((found[name] for found in rounds), key=lambda said: said.seconds)
        for group in sums:
            group.seconds[name] = group.seconds.get(name, 0.0) + fastest.seconds
            group.num_tokens[name] = group.num_tokens.get(name, 0) + fastest.num_decoded
            group.same_bytes &= all(found[name].packed() == wanted.packed() for found in rounds)


@dataclass
class Answers:
    """What was said to some requests, and how long that took once each of them had its first token.

    Attributes:
        records: request -> its tokens.
        num_decoded: tokens that came after the last of the first tokens.
        seconds: from then to the last token.
    """

    records: dict[str, list[TokenRecord]]
    num_decoded: int
    seconds: float

    def token_ids(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """As ``KnownContinuation`` wants them; no request asks for alternatives, so all are known."""
        return {
            (name, 0): tuple(-1 if r.token_id is None else r.token_id for r in said)
            for name, said in self.records.items()
        }

    def packed(self) -> bytes:
        """Everything that was said, as bytes."""
        return b"".join(
            struct.pack("<q2d", -1 if r.token_id is None else r.token_id, r.raw_logprob, r.processed_logprob)
            for said in self.records.values()
            for r in said
        )


def answers(subject: LLM, requests: Sequence[GenerateRequest]) -> Answers:
    """Ask, and read the clock whenever a token arrives."""
    records: dict[str, list[TokenRecord]] = {request.request_id: [] for request in requests}
    arrived_s: list[float] = []
    num_missing, began = len(requests), 0
    for record in subject.generate_iter(requests):
        if isinstance(record, RequestFailure):
            raise InputError(f"bench: {record.reason}")
        arrived_s.append(time.perf_counter())
        said = records[record.request_id]
        num_missing -= not said
        began = len(arrived_s) if num_missing == 0 and not said else began
        said.append(record)
    return Answers(records, len(arrived_s) - began, arrived_s[-1] - arrived_s[began - 1])


def _requests(prompts: Sequence[Sequence[int]], bench: SpeculationBench) -> list[GenerateRequest]:
    params = SamplingParams(
        temperature=bench.temperature, seed=7, max_tokens=bench.new_tokens, ignore_eos=True
    )
    return [GenerateRequest(request_id=str(i), token_ids=ids, params=params) for i, ids in enumerate(prompts)]


def _prompts(base: LLM, workload: str, bench: SpeculationBench, count: int) -> list[list[int]]:
    """Beginnings of the second and the second-last document, then of the others, then pieces further in."""
    config = base.model_config
    tokenizer = TextTokenizer(base.model_dir, config.bos_token_id, config.vocab_size)
    documents = list(load_workload(workload).documents)
    order = [documents[1], documents[-2], documents[0], *documents[2:-2], documents[-1]]
    found: list[list[int]] = []
    start = 0
    while len(found) < max(count, 2):
        for document in order:
            ids = tokenizer.encode(document.text, document.sample_id).token_ids.tolist()
            piece = ids[start : start + bench.prompt_tokens]
            if len(piece) == bench.prompt_tokens:
                found.append(piece)
        start += bench.prompt_tokens
    return found[: max(count, 2)]
