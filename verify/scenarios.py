"""Reports of wrong answers from other engines, as named cases that any engine can be put through.

Each is the story of one public report, retold on the bundled text: what made the bits move there must not
move them here. Lengths are scaled where the report used a larger model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from deepinfer.engine.api import Profile
from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.verify.case import Ask, Case, Need, TokenIds, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One report.

    Attributes:
        name: what the user types.
        report: where the story is told.
        symptom: what happened there.
        shows: what the cases compare.
        cases: the cases.
        absent: why this engine cannot be put through it, if it cannot.
    """

    name: str
    report: str
    symptom: str
    shows: str
    cases: Callable[[CheckContext], Iterator[Case]]
    absent: str | None = None

    def as_check(self) -> Check:
        """The scenario as a check."""
        about = f"{self.symptom}; here: {self.shows} ({self.report})"
        return case_check(self.name, about, self.cases, self.shows, absent=lambda context: self.absent)


def _case(name: str, workload: str, left: Trial, right: Trial, need: Need = Need.NOTHING) -> Case:
    check, _, rest = name.partition("/")
    return Case(check=check, name=rest, workload=workload, left=left, right=right, need=need)


def _score(*prompts: TokenIds, target: int = 0, **changes: str | int) -> Trial:
    return Trial(ask=Ask.SCORE, prompts=prompts, target=target, engine=settings(**changes))


def _pair_of_ten(context: CheckContext) -> Iterator[Case]:
    one, two = context.sample(0, 10), context.sample(1, 10)
    for profile in Profile:
        for index, sample in enumerate((one, two)):
            alone = _score(sample.token_ids, profile=profile)
            together = _score(one.token_ids, two.token_ids, target=index, profile=profile)
            yield _case(f"vllm-11778/{profile}-{index}", sample.workload, alone, together)


def _cold_warm(name: str, context: CheckContext, count: int) -> Iterator[Case]:
    for number in range(count):
        sample = context.sample(number, BLOCK_TOKENS + 17 + number)
        cold = Trial(
            ask=Ask.GENERATE,
            prompts=(sample.token_ids,),
            max_tokens=16,
            engine=settings(num_cache_blocks=16),
        )
        yield _case(f"{name}/cold-cold-{number}", sample.workload, cold, cold)
        warm = replace(cold, before=(sample.token_ids,))
        yield _case(f"{name}/cold-warm-{number}", sample.workload, cold, warm, Need.HIT)


def _growing_neighbour(context: CheckContext) -> Iterator[Case]:
    victim = context.sample(4, 700)
    alone = Trial(ask=Ask.GENERATE, prompts=(victim.token_ids,), max_tokens=8)
    for length in (8, 9, 10, 11):
        beside = replace(alone, prompts=(victim.token_ids, context.sample(0, length, start=31).token_ids))
        yield _case(f"vllm-51902/neighbour-{length}", victim.workload, alone, beside)


def _long_decode(context: CheckContext) -> Iterator[Case]:
    sample = context.sample(2, 20)
    generated = Trial(ask=Ask.GENERATE, prompts=(sample.token_ids,), max_tokens=224)
    rescored = Trial(ask=Ask.RESCORE, prompts=(sample.token_ids,))
    yield _case("vllm-54035/greedy-224", sample.workload, generated, rescored)


def _unseeded_neighbour(context: CheckContext) -> Iterator[Case]:
    one, two = context.sample(0, 14), context.sample(1, 22)
    alone = Trial(ask=Ask.GENERATE, prompts=(one.token_ids,), max_tokens=24, temperature=1.0, seeds=(42,))
    beside = replace(alone, prompts=(one.token_ids, two.token_ids), seeds=(42, None))
    yield _case("vllm-51226/unseeded", one.workload, alone, beside)


def _copies(context: CheckContext) -> Iterator[Case]:
    sample = context.sample(0, 37)
    alone = _score(sample.token_ids)
    for count in range(2, 9):
        together = _score(*[sample.token_ids] * count, target=count - 1)
        yield _case(f"lm-eval-704/copies-{count}", sample.workload, alone, together)


def _chunk_sizes(context: CheckContext) -> Iterator[Case]:
    for number in range(3):
        sample = context.sample(number, 300)
        whole = _score(sample.token_ids)
        for size in (16, 32, 64, 128, 256):
            cut = _score(sample.token_ids, max_chunk_tokens=size)
            yield _case(f"llama-cpp-3014/chunk-{size}-{number}", sample.workload, whole, cut)


def _widths(context: CheckContext) -> Iterator[Case]:
    sample = context.sample(3, 96)
    narrow = _score(sample.token_ids, max_chunk_tokens=1)
    for width in (2, 3, 4, 5, 8, 16, 33, 96):
        wide = _score(sample.token_ids, max_chunk_tokens=width)
        yield _case(f"llama-cpp-28768/width-{width}", sample.workload, narrow, wide)


def _one_length_changes(context: CheckContext) -> Iterator[Case]:
    samples = [context.sample(i, length) for i, length in enumerate((450, 500, 60, 250))]
    shorter = [*samples[:1], context.sample(1, 400), *samples[2:]]
    for index in (0, 2, 3):
        left = _score(*[s.token_ids for s in samples], target=index)
        right = _score(*[s.token_ids for s in shorter], target=index)
        yield _case(f"flash-attn-1570/row-{index}", samples[index].workload, left, right)


def _rows_of_a_linear(context: CheckContext) -> Iterator[Case]:
    sample = context.sample(1, 1 + BLOCK_TOKENS)
    single = _score(sample.token_ids, max_chunk_tokens=1)
    for rows in (2, 7, 8, 31, 64, 129):
        yield _case(
            f"pytorch-136338/rows-{rows}",
            sample.workload,
            single,
            _score(sample.token_ids, max_chunk_tokens=rows),
        )


def _ids_only(context: CheckContext) -> Iterator[Case]:
    for number in range(3):
        sample = context.sample(number, 25)
        drawn = Trial(
            ask=Ask.GENERATE, prompts=(sample.token_ids,), max_tokens=32, temperature=1.5, seeds=(number,)
        )
        rescored = Trial(ask=Ask.RESCORE, prompts=(sample.token_ids,))
        yield _case(f"vllm-53692/ids-{number}", sample.workload, drawn, rescored)


def _speculative(context: CheckContext) -> Iterator[Case]:
    for number, policy in enumerate(("fixed:1", "fixed:3", "fixed:5")):
        sample = context.sample(number, 40)
        plain = Trial(ask=Ask.GENERATE, prompts=(sample.token_ids,), max_tokens=32)
        drafted = replace(plain, engine=settings(speculation=policy))
        yield _case(f"vllm-7627/greedy-{number}", sample.workload, plain, drafted, Need.DRAFTS)


_VLLM, _SGLANG = "https://github.com/vllm-project/vllm", "https://github.com/sgl-project/sglang"
SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="vllm-11778",
        report=f"{_VLLM}/issues/11778",
        symptom="prompt log-probabilities of two ten-token prompts differ between batch size 1 and 2",
        shows="alone = together, in both profiles",
        cases=_pair_of_ten,
    ),
    Scenario(
        name="vllm-5543",
        report=f"{_VLLM}/issues/5543",
        symptom="a prefix hit flips an exact tie",
        shows="cold = warm",
        cases=lambda context: _cold_warm("vllm-5543", context, 2),
    ),
    Scenario(
        name="vllm-51902",
        report=f"{_VLLM}/issues/51902",
        symptom="a neighbour that grows from 9 to 10 tokens changes a long request's bits",
        shows="alone = beside neighbours of 8 to 11 tokens",
        cases=_growing_neighbour,
    ),
    Scenario(
        name="vllm-54035",
        report=f"{_VLLM}/issues/54035",
        symptom="with quantised caches decode leaves prefill at position 97",
        shows="224 decoded tokens = the same text scored",
        cases=_long_decode,
    ),
    Scenario(
        name="vllm-51226",
        report=f"{_VLLM}/issues/51226",
        symptom="a seed is ignored when a neighbour has none",
        shows="seeded alone = seeded beside an unseeded request",
        cases=_unseeded_neighbour,
    ),
    Scenario(
        name="vllm-7627",
        report=f"{_VLLM}/issues/7627",
        symptom="greedy speculative decoding differs from plain decoding",
        shows="speculation on = off",
        cases=_speculative,
    ),
    Scenario(
        name="sglang-34683",
        report=f"{_SGLANG}/issues/34683",
        symptom="a prefix hit flips 18 of 40 greedy answers, though two cold runs agree",
        shows="cold = cold, then cold = warm",
        cases=lambda context: _cold_warm("sglang-34683", context, 5),
    ),
    Scenario(
        name="lm-eval-704",
        report="https://github.com/EleutherAI/lm-evaluation-harness/issues/704",
        symptom="a log-likelihood changes between 4 and 5 copies of one sentence",
        shows="one copy = 2 to 8 copies",
        cases=_copies,
    ),
    Scenario(
        name="llama-cpp-3014",
        report="https://github.com/ggml-org/llama.cpp/issues/3014",
        symptom="perplexity depends on the batch option",
        shows="one chunk = chunks of 16 to 256",
        cases=_chunk_sizes,
    ),
    Scenario(
        name="llama-cpp-28768",
        report="https://github.com/ggml-org/llama.cpp/issues/28768",
        symptom="the most likely token changes between width 1 and more, which one width cannot show",
        shows="width 1 = widths 2 to 96",
        cases=_widths,
    ),
    Scenario(
        name="flash-attn-1570",
        report="https://github.com/Dao-AILab/flash-attention/issues/1570",
        symptom="other rows change when one sequence of the batch gets shorter",
        shows="the others stay as they are",
        cases=_one_length_changes,
    ),
    Scenario(
        name="pytorch-136338",
        report="https://github.com/pytorch/pytorch/issues/136338",
        symptom="a linear layer depends on its number of rows",
        shows="single rows = 2 to 129 rows at a time",
        cases=_rows_of_a_linear,
    ),
    Scenario(
        name="vllm-53692",
        report=f"{_VLLM}/pull/53692",
        symptom="a false alarm: decoded text was encoded again into other ids",
        shows="generated ids = the same ids scored, text never in between",
        cases=_ids_only,
    ),
)
