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

from deepinfer.engine.api import Device, EngineConfig, GenerateRequest, RequestFailure, SamplingParams
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
    """

    workloads: tuple[str, ...] = ("prose", "technical", "code", "longctx", "unicode")
    batches: tuple[int, ...] = (1,)
    policies: tuple[str, ...] = ("fixed", "fixed:2", "confidence")
    prompt_tokens: int = 64
    new_tokens: int = 64
    temperature: float = 0.0


@dataclass
class Group:
    """Sums over the runs of one workload, or one batch size.

    Attributes:
        num_tokens: tokens of every variant.
        seconds: variant -> seconds.
        same_bytes: whether every variant gave the bytes of plain decoding.
    """

    num_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    same_bytes: bool = True

    def speedup(self, variant: str) -> float:
        """Above 1, the variant is faster than plain decoding."""
        return self.seconds[PLAIN] / self.seconds[variant]

    def tokens_per_s(self, variant: str) -> float:
        """Speed of a variant, prefill included."""
        return self.num_tokens / self.seconds[variant]


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
    wanted, tokens = _answers(subjects[PLAIN], requests)
    size = subjects[PLAIN].model_config.dspark_block_size
    fixed = subjects[bench.policies[0]]
    known = fixed.with_drafter(KnownContinuation(tokens, size))
    for name, subject in {**subjects, KNOWN: known}.items():
        for _ in range(_UNTIMED if subject.config.device is Device.CUDA else 0):
            _answers(subject, requests)
        began_s = time.perf_counter()
        found, _ = _answers(subject, requests)
        elapsed_s = time.perf_counter() - began_s
        for group in sums:
            group.seconds[name] = group.seconds.get(name, 0.0) + elapsed_s
            group.same_bytes &= found == wanted
    for group in sums:
        group.num_tokens += sum(len(ids) for ids in tokens.values())


def _answers(
    subject: LLM, requests: Sequence[GenerateRequest]
) -> tuple[bytes, dict[tuple[str, int], tuple[int, ...]]]:
    """Everything that was said, as bytes, and the tokens by request."""
    packed, tokens = b"", {}
    for request, result in zip(requests, subject.generate(requests), strict=True):
        if isinstance(result, RequestFailure):
            raise InputError(f"bench: {result.reason}")
        for record in result[0].records:
            token = -1 if record.token_id is None else record.token_id
            packed += struct.pack("<q2d", token, record.raw_logprob, record.processed_logprob)
        tokens[request.request_id, 0] = result[0].token_ids
    return packed, tokens


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
