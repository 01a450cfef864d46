"""``deepinfer bench``: speed of scoring, prefill and decoding, beside the same engine on plain torch ops.

Both kernel sets get the same prompts, warm up first, and are judged by the fastest of the same number of
passes; everything but the ops is the same code. Greedy tokens may differ between the sets once their logits
tie within rounding; the number of tokens does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from deepinfer.engine import core, llm
from deepinfer.engine.api import EngineConfig, GenerateRequest, RequestFailure, SamplingParams, ScoreRequest
from deepinfer.engine.errors import InputError
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.torch_threads import kernel_threads, torch_threads
from deepinfer.eval.stopwatch import replaced, timed
from deepinfer.eval.tokenizer import TextTokenizer
from deepinfer.eval.workload import load_workload

PLAIN = "reference"
"""The kernel set of plain torch ops."""
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
        num_passes: timed passes, of which the fastest counts.
    """

    context: int = 1024
    num_sequences: int = 2
    batches: tuple[int, ...] = (1, 8, 32)
    prompt_tokens: int = 128
    num_steps: int = 12
    num_passes: int = 3


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens per second of one kind of work.

    Attributes:
        tokens_per_s: the engine as configured.
        plain_tokens_per_s: on plain torch ops.
    """

    tokens_per_s: float
    plain_tokens_per_s: float

    @property
    def ratio_to_plain(self) -> float:
        """Above 1, the engine is faster than plain torch."""
        return self.tokens_per_s / self.plain_tokens_per_s


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All speeds of one run.

    Attributes:
        engine: the configuration measured.
        num_threads: threads of the kernels, and of torch on the plain path.
        bench: what was measured.
        scoring: log-probabilities of every position.
        prefill: prompts up to their first sampled token.
        decode: batch size -> one token for each sequence and step.
        scheduler_overhead: share of a decode step at the largest batch that is neither the model's forward
            pass nor its head nor sampling; on the engine as configured.
    """

    engine: EngineConfig
    num_threads: int
    bench: BenchConfig
    scoring: Speed
    prefill: Speed
    decode: dict[int, Speed]
    scheduler_overhead: float


@dataclass
class _Speeds:
    """Tokens per second on one kernel set."""

    scoring: float = 0.0
    prefill: float = 0.0
    decode: dict[int, float] = field(default_factory=dict)
    overhead: float = 0.0


def run_bench(
    model: Path | None,
    engine: EngineConfig,
    bench: BenchConfig,
    progress: Progress = lambda what, done, total: None,
) -> BenchResult:
    """Measure the configured kernel set, then plain torch ops, in this process.

    Prefix reuse is switched off: the same prompts are run again and again.

    Raises:
        InputError: the model is too short for ``bench``.
        DeepInferError: the model cannot be used.
    """
    threads = kernel_threads(engine)
    rows = max(engine.max_batch_tokens, max(bench.batches) * bench.prompt_tokens)
    engine = replace(engine, num_threads=threads, prefix_caching=False, max_batch_tokens=rows)
    found = []
    for number, backend in enumerate((engine.backend, PLAIN)):
        progress(f"loading the model for kernel set {backend}", number, 2)
        subject = LLM(model, replace(engine, backend=backend))
        with torch_threads_of(backend, threads):
            found.append(_measure(subject, bench, partial(_say, progress, number)))
    progress("done", 2, 2)
    own, plain = found

    def beside(speed: float, plain_speed: float) -> Speed:
        return Speed(tokens_per_s=speed, plain_tokens_per_s=plain_speed)

    return BenchResult(
        engine=engine,
        num_threads=threads,
        bench=bench,
        scoring=beside(own.scoring, plain.scoring),
        prefill=beside(own.prefill, plain.prefill),
        decode={batch: beside(own.decode[batch], plain.decode[batch]) for batch in bench.batches},
        scheduler_overhead=own.overhead,
    )


def _say(progress: Progress, number: int, what: str) -> None:
    progress(what, number, 2)


@contextmanager
def torch_threads_of(backend: str, num_threads: int) -> Iterator[None]:
    """Let plain torch ops use as many threads as our kernels, where the engine keeps torch to one."""
    if backend != PLAIN:
        yield
        return
    with ExitStack() as stack:
        for module in (llm, core):
            stack.enter_context(replaced(module, "single_torch_thread", lambda: torch_threads(num_threads)))
        yield


def _measure(subject: LLM, bench: BenchConfig, say: Callable[[str], None]) -> _Speeds:
    backend, speeds = subject.config.backend, _Speeds()
    prompts = _prompts(subject, bench.context, bench.num_sequences)
    num_tokens = bench.context * bench.num_sequences
    say(f"{backend}: scoring at context {bench.context}")
    scores = [ScoreRequest(request_id=str(i), token_ids=ids) for i, ids in enumerate(prompts)]
    _run_once(subject.score(scores[:1]))
    speeds.scoring = num_tokens / _fastest(bench.num_passes, lambda: _run_once(subject.score(scores)))
    say(f"{backend}: prefill at context {bench.context}")
    starts = _generate_requests(prompts, max_tokens=1)
    _run_once(subject.generate(starts[:1]))
    speeds.prefill = num_tokens / _fastest(bench.num_passes, lambda: _run_once(subject.generate(starts)))
    for batch in bench.batches:
        say(f"{backend}: decoding {batch} sequences")
        step_s, speeds.overhead = _decode(subject, bench, batch)
        speeds.decode[batch] = batch / step_s
    return speeds


def _decode(subject: LLM, bench: BenchConfig, batch: int) -> tuple[float, float]:
    """Seconds of a decode step in the fastest pass, and the share of all steps outside model and sampling."""
    num_steps = _WARM_STEPS + bench.num_passes * bench.num_steps
    prompts = _prompts(subject, bench.prompt_tokens, batch)
    # one step prefills all prompts and samples their first tokens; every later one is `batch` rows
    records = subject.generate_iter(_generate_requests(prompts, max_tokens=1 + num_steps))
    _take(records, batch * (1 + _WARM_STEPS))
    with (
        timed(core.EngineCore, "step") as step,
        timed(Transformer, "forward") as forward,
        timed(Transformer, "logits") as head,
        timed(core, "sample_rows") as sampling,
    ):
        fastest_s = _fastest(bench.num_passes, lambda: _take(records, batch * bench.num_steps))
    inside_s = forward.seconds + head.seconds + sampling.seconds
    return fastest_s / bench.num_steps, 1 - inside_s / step.seconds


def _take(records: Iterator[object], count: int) -> None:
    _run_once(list(islice(records, count)))


def _run_once(results: Sequence[object]) -> None:
    """A refused request would make everything look fast."""
    for result in results:
        if isinstance(result, RequestFailure):
            raise InputError(f"bench: {result.reason}; choose a smaller --context")


def _fastest(num_passes: int, work: Callable[[], None]) -> float:
    """Seconds of the fastest pass."""
    passes = []
    for _ in range(num_passes):
        started_s = time.perf_counter()
        work()
        passes.append(time.perf_counter() - started_s)
    return min(passes)


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
