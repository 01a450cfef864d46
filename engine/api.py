"""The shared vocabulary between the engine and its callers: plain frozen data, no torch.

Token ids go in, log-probabilities come out; text never enters the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deepinfer.engine.choices import CacheFormat as CacheFormat
from deepinfer.engine.choices import Device as Device
from deepinfer.engine.choices import PrefillMode as PrefillMode
from deepinfer.engine.choices import Profile as Profile
from deepinfer.engine.speculation.options import NO_SPECULATION, Speculation

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How to run a model; never what the model is.

    Attributes:
        profile: arithmetic profile; part of every key and printed with every figure.
        cache_format: ``none`` is for comparison with references only.
        prefill: prefill mode of every request.
        keep: trailing rows that ``mask`` and ``compact`` keep; ``None`` is the model's default (window + 8,
            140 on the released model).
        num_threads: threads of the CPU kernels; bits never depend on it. ``None`` is all cores of the
            process.
        max_batch_tokens: rows of one forward step; bits never depend on it.
        max_chunk_tokens: longest run of one sequence in a step, ``None`` for no limit; bits never depend on
            it.
        max_num_seqs: sequences that generate at a time; further ones wait.
        num_cache_blocks: cache blocks of 128 tokens that generation may hold.
        prefix_caching: reuse the caches of common prefixes between prompts; bits never depend on it.
        device: where weights, caches and steps lie.
        backend: kernel set, ``cpu`` or ``triton`` (batch-invariant, each on its device), ``reference`` (plain
            torch on a CPU: meaning, not bits) or ``library`` (the libraries' kernels on a CUDA device, for
            speed figures).
        asynchronous: plan a step while the one before it runs; ``None`` does so on a CUDA device and not on
            a CPU, whose cores are busy. Bits never depend on it.
        allow_long: read sequences past the length that the model was trained for.
        recorded_steps: run small steps, and those of scoring, padded to shared shapes, on a CUDA device as
            graphs; ``None`` does so there and not on a CPU, where it saves nothing. Bits never depend on it.
        speculation: how many drafted tokens a decode step verifies; bits never depend on it.
    """

    profile: Profile = Profile.STRICT
    cache_format: CacheFormat = CacheFormat.RELEASED
    prefill: PrefillMode = PrefillMode.OFF
    keep: int | None = None
    num_threads: int | None = None
    max_batch_tokens: int = 2048
    max_chunk_tokens: int | None = None
    max_num_seqs: int = 64
    num_cache_blocks: int = 512
    prefix_caching: bool = True
    device: Device = Device.CPU
    speculation: Speculation = NO_SPECULATION
    asynchronous: bool | None = None
    recorded_steps: bool | None = None
    allow_long: bool = False
    backend: str = "cpu"

    @property
    def records_steps(self) -> bool:
        """``recorded_steps`` with its default filled in."""
        return self.device is Device.CUDA if self.recorded_steps is None else self.recorded_steps


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """One sequence to score.

    Attributes:
        request_id: name that comes back with the result; unique within a call.
        token_ids: the whole sequence, begin token included if one is wanted; the engine adds nothing.
        score_start: first position whose log-probability is wanted (at least 1: position 0 has no context).
        num_top: how many most likely tokens to return per scored position, 0 for none.
        return_logits: return the full logits rows that predict the scored positions.
    """

    request_id: str
    token_ids: Sequence[int]
    score_start: int = 1
    num_top: int = 0
    return_logits: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """Log-probabilities of one sequence; every array has one row per token of the request.

    Attributes:
        request_id: the request's name.
        token_ids: [S] int32.
        logprobs: [S] float32, natural log of p(token at this position | tokens before it); NaN where not
            valid.
        ranks: [S] int32, how many tokens are more likely, ties broken by the lower id; -1 where not valid.
        valid: [S] bool; false at position 0, before ``score_start``, and in the rows truncated prefill skips.
        top_ids: [S, num_top] int32, most likely first, or None; rows that are not valid hold -1.
        top_logprobs: [S, num_top] float32, or None.
        logits: [S, V] float32, row p predicts position p; rows that are not valid hold NaN; or None.
        final_logits: [V] float32, the row after the last token (it predicts position S); with
            ``return_logits`` only.
    """

    request_id: str
    token_ids: Int32Array
    logprobs: Float32Array
    ranks: Int32Array
    valid: BoolArray
    top_ids: Int32Array | None = None
    top_logprobs: Float32Array | None = None
    logits: Float32Array | None = None
    final_logits: Float32Array | None = None


@dataclass(frozen=True, kw_only=True)
class RequestFailure:
    """Stands in the place of the result of a request that could not be run; its neighbours are unharmed.

    Attributes:
        request_id: the request's name.
        reason: one line that says what is wrong with the request.
    """

    request_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens; ``sampling_rules.validate`` says what is allowed.

    The three filters look at the full distribution after bias and temperature; the strictest one decides.

    Attributes:
        temperature: divides the logits; 0 is greedy: the largest biased logit, lowest id on ties.
        top_p: smallest set of most likely tokens with more than this mass; 1 is off.
        top_k: number of most likely tokens; 0 is off.
        min_p: least probability as a fraction of the largest; 0 is off.
        logit_bias: added to the logits of some ids; -inf bans an id.
        seed: 64 bits; ``None`` lets the engine draw one, and the result says which.
        n: number of samples of one prompt; sample i has random words of its own.
        max_tokens: most tokens to generate, the end token included.
        stop_token_ids: ids that end the sequence as the end token does; they are emitted.
        ignore_eos: go on after the end token.
        num_logprobs: alternatives per token, most likely first, with RAW log-probabilities (temperature 1,
            no bias, no filter).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    n: int = 1
    max_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int = 0


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Continue one prompt.

    Attributes:
        request_id: name that comes back with every record; unique within an engine.
        token_ids: the prompt, begin token included if one is wanted.
        params: sampling parameters.
        prompt_logprobs: also score the prompt; such a request takes nothing from the prefix cache.
        should_stop: asked with the emitted ids after each token; true ends the sample with reason ``stop``.
            This is how stop strings work, since text never enters the engine.
    """

    request_id: str
    token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    prompt_logprobs: bool = False
    should_stop: Callable[[Sequence[int]], bool] | None = None


class TokenRecord(NamedTuple):
    """One emitted token of one sample; a tuple, which is made in a quarter of the time of a frozen dataclass.

    Attributes:
        request_id, sample_index: whose token.
        token_id: the token; None on a terminal record without a token (abort, prompt that can never fit).
        position: absolute position of the token.
        raw_logprob: of the model's own distribution, nats; NaN without a token.
        processed_logprob: after bias, temperature and filters, nats; NaN without a token.
        top_ids, top_logprobs: most likely tokens of the raw distribution, as many as asked for.
        prompt: scores of the prompt, on the first token if asked for; ``valid`` is False in the holes.
        finish_reason: ``stop``, ``length``, ``abort`` or ``prompt_length_exceeded`` on the last record of a
            sample, else empty.
        num_hit_tokens, num_preemptions: of the sample, on its last record; no part of what was answered, nor
            of what makes two records equal.
    """

    request_id: str
    sample_index: int
    token_id: int | None
    position: int
    raw_logprob: float
    processed_logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    prompt: ScoreResult | None = None
    finish_reason: str = ""
    num_hit_tokens: int = 0
    num_preemptions: int = 0

    def __eq__(self, other: object) -> bool:
        """Whether both say the same of the same token."""
        if not isinstance(other, TokenRecord):
            return NotImplemented
        return tuple(self)[:_NUM_COMPARED] == tuple(other)[:_NUM_COMPARED]

    def __ne__(self, other: object) -> bool:
        """See ``__eq__``; a tuple has an answer of its own."""
        return not self == other

    def __hash__(self) -> int:
        """Of what is compared."""
        return hash(tuple(self)[:_NUM_COMPARED])


_NUM_COMPARED = TokenRecord._fields.index("num_hit_tokens")


@dataclass(frozen=True, kw_only=True)
class Completion:
    """All records of one sample of a request.

    Attributes:
        request_id, sample_index: whose sample.
        records: in order; the last one has the finish reason.
    """

    request_id: str
    sample_index: int
    records: tuple[TokenRecord, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The emitted tokens."""
        return tuple(record.token_id for record in self.records if record.token_id is not None)

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        return self.records[-1].finish_reason

    @property
    def num_hit_tokens(self) -> int:
        """Positions that came from the prefix cache, over all its admissions."""
        return self.records[-1].num_hit_tokens


class FinishReason(StrEnum):
    """Why a sample ended: stop token or text, a length limit, the caller, or a prompt that can never fit."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    PROMPT_LENGTH_EXCEEDED = "prompt_length_exceeded"
