"""``deepinfer bench``: speed of scoring, prefill and decoding, beside the same engine on plain torch ops.

Three variants take turns pass by pass on the same prompts, so that a machine that slows down slows all of
them: the two profiles of the configured kernel set, and plain torch ops, which compute in float32 without the
roundings of profile fast (those would only cost them time). Everything but the ops is the same code. Greedy
tokens may differ between the variants once their logits tie within rounding; the number of tokens does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from deepinfer.engine import core, drawn_rows
from deepinfer.engine.api import (
    Device,
    EngineConfig,
    GenerateRequest,
    Profile,
    RequestFailure,
    SamplingParams,
    ScoreRequest,
)
from deepinfer.engine.errors import InputError
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.torch_threads import kernel_threads
from deepinfer.eval.stopwatch import timed
from deepinfer.eval.tokenizer import TextTokenizer
from deepinfer.eval.workload import load_workload

PLAIN = "plain"
"""Variant on plain torch ops; the other variants are named by their profile."""
_WARM_STEPS = 4

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to measure; the defaults take less than a minute on two cores, once the kernels are compiled.

    Attributes:
        context: tokens of each scored or prefilled sequence.
        num_sequences: sequences of a scoring or prefill pass.
        batches: numbers of sequences that decode together.
        prompt_tokens: context at which decoding starts.
        num_steps: decode steps of a timed pass.
        num_passes: timed passes of every variant, after one that warms up.
    """

    context: int = 1024
    num_sequences: int = 2
    batches: tuple[int, ...] = (1, 8, 32)
    prompt_tokens: int = 128
    num_steps: int = 8
    num_passes: int = 3


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Timed passes of one variant.

    Attributes:
        num_tokens: tokens of a pass.
        pass_s: seconds of every pass.
    """

    num_tokens: int
    pass_s: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Of the fastest pass, the one that other work on the machine disturbed least."""
        return self.num_tokens / min(self.pass_s)

    @property
    def median_tokens_per_s(self) -> float:
        """Of the median pass."""
        return self.num_tokens / median(self.pass_s)

    def ratio_to(self, other: Speed) -> float:
        """Above 1, this variant is faster; fastest passes compared."""
        return self.tokens_per_s / other.tokens_per_s


Speeds = Mapping[str, Speed]
"""Variant -> its speed at one kind of work."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All speeds of one run.

    Attributes:
        engine: the configuration measured; its profile names the headline variant.
        num_threads: threads of the kernels, and of torch on the plain path.
        bench: what was measured.
        scoring: log-probabilities of every position.
        prefill: prompts up to their first sampled token.
        decode: batch size -> one token for each sequence and step.
        scheduler_overhead: share of a decode step at the largest batch that is neither the model's forward
            pass nor its head nor sampling; on the engine as configured.
        elapsed_s: seconds of the whole run, loading included.
    """

    engine: EngineConfig
    num_threads: int
    bench: BenchConfig
    scoring: Speeds
    prefill: Speeds
    decode: dict[int, Speeds]
    scheduler_overhead: float
    elapsed_s: float


def run_bench(
    model: Path | None,
    engine: EngineConfig,
    bench: BenchConfig,
    progress: Progress = lambda what, done, total: None,
) -> BenchResult:
    """Measure both profiles of the configured kernel set and plain torch ops, in this process.

    Prefix reuse is switched off: the same prompts are run again and again.

    Raises:
        InputError: the model is too short for ``bench``.
        DeepInferError: the model cannot be used.
    """
    started_s = time.perf_counter()
    num_works = 3 + len(bench.batches)
    threads = kernel_threads(engine)
    rows = max(engine.max_batch_tokens, max(bench.batches) * bench.prompt_tokens)
    engine = replace(engine, num_threads=threads, prefix_caching=False, max_batch_tokens=rows)
    progress("loading the model", 0, num_works)
    subjects = _load(model, engine)
    progress(f"scoring at context {bench.context}", 1, num_works)
    prompts = _prompts(subjects[PLAIN], bench.context, bench.num_sequences)
    scoring = _score(subjects, bench, prompts)
    progress(f"prefill at context {bench.context}", 2, num_works)
    prefill = _prefill(subjects, bench, prompts)
    decode, overhead = {}, 0.0
    for number, batch in enumerate(sorted(bench.batches)):
        progress(f"decoding {batch} sequences", 3 + number, num_works)
        decode[batch], overhead = _decode(subjects, engine.profile, bench, batch)
    progress("done", num_works, num_works)
    return BenchResult(
        engine=engine,
        num_threads=threads,
        bench=bench,
        scoring=scoring,
        prefill=prefill,
        decode=decode,
        scheduler_overhead=overhead,
        elapsed_s=time.perf_counter() - started_s,
    )


def _plain(engine: EngineConfig) -> EngineConfig:
    """Float32 on a CPU; on a CUDA device the libraries' kernels in bfloat16, as fast as they are."""
    if engine.device is Device.CUDA:
        return replace(engine, backend="library", profile=Profile.FAST)
    return replace(engine, backend="reference", profile=Profile.STRICT)


def _load(model: Path | None, engine: EngineConfig) -> dict[str, LLM]:
    """Every variant; the profiles share their weights."""
    own = LLM(model, engine)
    subjects = {profile.value: own.with_config(replace(engine, profile=profile)) for profile in Profile}
    subjects[PLAIN] = LLM(model, _plain(engine))
    return subjects


def _score(subjects: Mapping[str, LLM], bench: BenchConfig, prompts: Sequence[Sequence[int]]) -> Speeds:
    requests = [ScoreRequest(request_id=str(i), token_ids=ids) for i, ids in enumerate(prompts)]

    def work(subject: LLM) -> Callable[[], None]:
        return lambda: _check(subject.score(requests))

    works = {name: work(subject) for name, subject in subjects.items()}
    return _take_turns(works, bench, bench.context * len(prompts))


def _prefill(subjects: Mapping[str, LLM], bench: BenchConfig, prompts: Sequence[Sequence[int]]) -> Speeds:
    requests = _generate_requests(prompts, max_tokens=1)

    def work(subject: LLM) -> Callable[[], None]:
        return lambda: _check(subject.generate(requests))

    works = {name: work(subject) for name, subject in subjects.items()}
    return _take_turns(works, bench, bench.context * len(prompts))


def _decode(
    subjects: Mapping[str, LLM], watched: Profile, bench: BenchConfig, batch: int
) -> tuple[Speeds, float]:
    """Speeds of a pass of decode steps, and the share of ``watched``'s steps outside model and sampling."""
    num_steps = _WARM_STEPS + (1 + bench.num_passes) * bench.num_steps
    requests = _generate_requests(_prompts(subjects[PLAIN], bench.prompt_tokens, batch), 1 + num_steps)
    shares: list[float] = []

    def work(name: str, records: Iterator[object]) -> Callable[[], None]:
        def steps() -> None:
            _check(list(islice(records, batch * bench.num_steps)))

        return (lambda: shares.append(_share_outside(steps))) if name == watched else steps

    works = {}
    for name, subject in subjects.items():
        # one step prefills all prompts and samples their first tokens; every later one is `batch` rows
        records = subject.generate_iter(requests)
        _check(list(islice(records, batch * (1 + _WARM_STEPS))))
        works[name] = work(name, records)
    return _take_turns(works, bench, batch * bench.num_steps), median(shares)


def _share_outside(steps: Callable[[], None]) -> float:
    """Share of the engine's steps in ``steps`` that is neither forward pass nor head nor sampling."""
    inside = (
        (Transformer, "forward"),
        (Transformer, "logits"),
        (drawn_rows, "draw_rows"),
        (drawn_rows, "describe_rows"),
    )
    with ExitStack() as stack:
        step = stack.enter_context(timed(core.EngineCore, "step"))
        watches = [stack.enter_context(timed(owner, name)) for owner, name in inside]
        steps()
    return 1 - sum(watch.seconds for watch in watches) / step.seconds


def _take_turns(works: Mapping[str, Callable[[], None]], bench: BenchConfig, num_tokens: int) -> Speeds:
    """Run every variant once to warm up, then all of them in turn, ``num_passes`` times."""
    passes: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + bench.num_passes):
        for name, work in works.items():
            started_s = time.perf_counter()
            work()
            passes[name].append(time.perf_counter() - started_s)
    return {name: Speed(num_tokens=num_tokens, pass_s=tuple(timings[1:])) for name, timings in passes.items()}


def _check(results: Sequence[object]) -> None:
    """A refused request would make everything look fast."""
    for result in results:
        if isinstance(result, RequestFailure):
            raise InputError(f"bench: {result.reason}; choose a smaller --context")


def _generate_requests(prompts: Sequence[Sequence[int]], max_tokens: int) -> list[GenerateRequest]:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return [GenerateRequest(request_id=str(i), token_ids=ids, params=params) for i, ids in enumerate(prompts)]


def _prompts(subject: LLM, length: int, count: int) -> list[list[int]]:
    """Windows of bundled text, from its beginning again when it is used up."""
    config = subject.model_config
    tokenizer = TextTokenizer(subject.model_dir, config.bos_token_id, config.vocab_size)
    stream: list[int] = []
    while len(stream) < length * count:
        for document in load_workload("longctx").documents:
            stream += tokenizer.encode(document.text, document.sample_id).token_ids.tolist()
            if len(stream) >= length * count:
                break
    return [stream[length * i : length * (i + 1)] for i in range(count)]
