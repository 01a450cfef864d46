"""Digests of ops line up whatever shared the batch, and the first difference is where it began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.engine.api import EngineConfig, GenerateRequest, PrefillMode, SamplingParams, ScoreRequest
from deepinfer.engine.errors import InputError
from deepinfer.engine.llm import LLM
from deepinfer.engine.op_trace import Label, Tracer, row_digests
from deepinfer.engine.speculation.drafter import KnownContinuation
from deepinfer.engine.speculation.options import Speculation
from deepinfer.engine.traced_model import traced
from deepinfer.kernels.cpu.backend import CpuOps
from deepinfer.kernels.operands import LowRank, Rotary
from deepinfer.verify.locate import Trace, first_difference, trace_of
from deepinfer.verify.trace_file import read_trace, write_trace


def ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(4, 500, length).tolist()


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=1))


def scored(llm: LLM, *prompts: list[int], open_chains: bool = True, **changes: object) -> Trace:
    """Digests of the last prompt, scored beside the others."""
    tracer = Tracer(prompts[-1])
    engine = llm.with_config(replace(llm.config, **changes))  # type: ignore[arg-type]
    requests = [
        ScoreRequest(request_id=str(i), token_ids=p, return_logits=True) for i, p in enumerate(prompts)
    ]
    engine.with_model(traced(tracer, open_chains=open_chains)).score(requests)
    return trace_of(tracer)


@pytest.mark.parametrize("open_chains", [True, False])
def test_company_and_chunks_move_no_digest(llm: LLM, open_chains: bool) -> None:
    alone = scored(llm, ids(40), open_chains=open_chains)
    assert len(alone.digests) > 5000
    for other in (
        scored(llm, ids(7, seed=1), ids(40), open_chains=open_chains),
        scored(llm, ids(40), open_chains=open_chains, max_chunk_tokens=7),
    ):
        assert len(alone.digests.keys() & other.digests.keys()) > 0.95 * len(alone.digests)
        assert first_difference(alone, other) is None


def test_decoding_lines_up_with_prefill(llm: LLM) -> None:
    tracer = Tracer(ids(20))
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    request = GenerateRequest(request_id="g", token_ids=ids(20), params=params)
    [completion] = llm.with_model(traced(tracer)).generate([request])
    assert isinstance(completion, tuple)
    whole = ids(20) + list(completion[0].token_ids)[:-1]
    other = Tracer(whole)
    llm.with_model(traced(other)).score([ScoreRequest(request_id="s", token_ids=whole, return_logits=True)])
    decoded, prefilled = trace_of(tracer), trace_of(other)
    shared = decoded.digests.keys() & prefilled.digests.keys()
    assert {position for _, position in shared} == set(range(25))
    assert first_difference(decoded, prefilled) is None


def generated(
    llm: LLM, prompt: list[int], policy: str = "off", text: list[int] | None = None, **tracing: bool
) -> tuple[Trace, list[int]]:
    """Digests of an answer of twelve tokens, and the answer; ``text`` is what drafts are taken from."""
    tracer = Tracer(prompt)
    config = replace(llm.config, speculation=Speculation.from_text(policy))
    engine = llm.with_config(config).with_model(traced(tracer, **tracing))
    engine._drafter = KnownContinuation({("g", 0): text or []})
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    [answer] = engine.generate([GenerateRequest(request_id="g", token_ids=prompt, params=params)])
    assert isinstance(answer, tuple)
    said = list(answer[0].token_ids)
    return trace_of(tracer, prompt + said), said


def test_drafted_rows_are_told_from_rows_computed_again(llm: LLM) -> None:
    """A text that is right but for its fourth token: what was drafted from it is rejected and left out."""
    plain, text = generated(llm, ids(30))
    wrong = [*text[:3], (text[3] + 1) % 500, *text[4:]]
    found, said = generated(llm, ids(30), "fixed:3", wrong)
    assert said == text
    # token 0 is at position 30; the drafts behind it are 31 to 33, and the next known token is the right 33
    rows = [(row.position, row.is_accepted) for row in found.drafted]
    assert rows[:6] == [(31, True), (32, True), (33, False), (34, True), (35, True), (36, True)]
    assert [row.token_id for row in found.drafted[:3]] == wrong[1:4]
    assert plain.drafted == ()
    shared = plain.digests.keys() & found.digests.keys()
    assert {position for _, position in shared} == set(range(30 + 11))
    assert len(shared) > 0.9 * len(plain.digests)
    assert all(len(digests) == 1 for digests in found.digests.values())
    assert first_difference(plain, found) is None


def test_a_fault_of_verified_rows_is_named(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come three at a time are rotated by the position before theirs."""
    plain, text = generated(llm, ids(30), open_chains=False)
    honest = CpuOps.low_rank_query

    def late(ops: CpuOps, x: torch.Tensor, weights: LowRank, heads: int, rotary: Rotary) -> object:
        early = rotary.positions - int(len(rotary.positions) == 3)
        return honest(ops, x, weights, heads, replace(rotary, positions=early))

    monkeypatch.setattr(CpuOps, "low_rank_query", late)
    found = first_difference(plain, generated(llm, ids(30), "fixed:2", text, open_chains=False)[0])
    assert found is not None
    assert (found.layer, found.op, found.position) == (0, "low_rank_query", 30)


def test_another_token_shows_where_it_stands(llm: LLM) -> None:
    changed = ids(40)
    changed[23] = 3 if changed[23] != 3 else 4
    found = first_difference(scored(llm, ids(40)), scored(llm, changed))
    assert found is not None
    # the row before is asked for the log-probability of another token
    assert (found.layer, found.position, found.op) == (
        llm.model_config.num_hidden_layers,
        22,
        "token_logprobs",
    )
    tracers = [Tracer(prompt) for prompt in (ids(40), changed)]
    for tracer in tracers:
        llm.with_model(traced(tracer)).prefill_state(tracer.prompt.tolist())
    found = first_difference(*map(trace_of, tracers))
    assert found is not None
    assert (found.layer, found.position, found.op) == (0, 23, "block_in")


def test_mask_and_compact_share_their_digests(llm: LLM) -> None:
    masked = scored(llm, ids(60), prefill=PrefillMode.MASK)
    compact = scored(llm, ids(60), prefill=PrefillMode.COMPACT)
    assert len(masked.digests) > len(compact.digests)
    assert first_difference(masked, compact) is None


def test_no_trace_means_no_cost(llm: LLM) -> None:
    assert type(llm.ops).__name__ == "CpuOps"  # nothing of the tracer is in the way of an untraced run


def test_digests_see_single_bits() -> None:
    rows = torch.zeros(3, 5)
    other = rows.clone()
    other.view(torch.int32)[1, 4] = 1
    assert [a == b for a, b in zip(row_digests(rows, None), row_digests(other, None), strict=True)] == [
        True,
        False,
        True,
    ]


def label(layer: int, op: str, tensor: str = "out") -> Label:
    return Label(layer, "site", op, 0, tensor)


def test_the_first_row_wins_over_the_first_op() -> None:
    """Row 5 of layer 1 was wrong before row 6 of layer 0, which read it in a later step."""
    order = (label(0, "a"), label(0, "b"), label(1, "a"))
    ranks = {part: number for number, part in enumerate(order)}
    one = Trace(ranks=ranks, digests={(part, row): (1,) for part in order for row in range(8)})
    wrong = {(label(1, "a"), 5): (2,), (label(0, "a"), 6): (2,), (label(0, "b"), 7): (2,)}
    found = first_difference(
        one, Trace(ranks=dict(reversed(ranks.items())), digests={**one.digests, **wrong})
    )
    assert found is not None
    assert (found.layer, found.op, found.position, found.num_differing) == (1, "a", 5, 3)
    assert "layer 1, output of a in site, row of position 5" in found.describe()


def test_a_trace_survives_its_file(llm: LLM, tmp_path: Path) -> None:
    trace = scored(llm, ids(12))
    write_trace(tmp_path / "t", trace, {"token_hash": "x"})
    again, about = read_trace(tmp_path / "t")
    assert (again, about) == (trace, {"token_hash": "x"})


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_what_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(InputError, match="no trace of deepinfer"):
        read_trace(tmp_path / "t")
