"""Every CPU op against its definition in plain torch.

Strict: the tolerance covers another summation order in float32, some ulp of the largest term. Fast: the same
    plus one
bfloat16 rounding of the result (2**-8 relative), since a sum next to a rounding boundary may fall on either
side.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.kernels.interface import Ops

Draw = Callable[..., torch.Tensor]
ROWS = [1, 2, 7, 37]


def close(got: torch.Tensor, want: torch.Tensor, rounded: bool) -> None:
    """float32 summation noise, and one bfloat16 step where results are rounded."""
    scale = want.abs().amax().clamp(min=1.0)
    noise = (got - want).abs() / scale
    assert noise.max() < (2**-7 if rounded else 4e-6), noise.max()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 130), (24, 1000), (1000, 24), (64, 16)])
def test_linear(
    cpu: Ops, reference: Ops, draw: Draw, bf16: bool, rows: int, inputs: int, outputs: int
) -> None:
    x, weight = draw(rows, inputs), draw(outputs, inputs)
    packed = cpu.pack_linear(weight)
    close(cpu.linear(x, packed), reference.linear(x, weight), bf16)
    close(cpu.linear_fp32(x, packed), reference.linear_fp32(x, weight), False)


def test_grouped_linear(cpu: Ops, reference: Ops, draw: Draw, bf16: bool) -> None:
    x, weight = draw(9, 2 * 128), draw(2, 40, 128)
    close(cpu.linear(x, cpu.pack_linear(weight)), reference.linear(x, weight), bf16)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [24, 256, 1000])
def test_rms_norm(cpu: Ops, reference: Ops, draw: Draw, bf16: bool, rows: int, width: int) -> None:
    x, gain = draw(rows, width), draw(width)
    close(cpu.rms_norm(x, gain, 1e-20), reference.rms_norm(x, gain, 1e-20), bf16)


@pytest.mark.parametrize("rows", [1, 17])
def test_hyper_connection(cpu: Ops, reference: Ops, draw: Draw, bf16: bool, rows: int) -> None:
    streams, fn, base, scale = draw(rows, 4, 64), draw(24, 256) * 0.05, draw(24), draw(3)
    got = cpu.hc_mix(streams, cpu.pack_linear(fn), base, scale, 20, 1e-6, 1e-20)
    want = reference.hc_mix(streams, fn, base, scale, 20, 1e-6, 1e-20)
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs, False)
    out = draw(rows, 64)
    close(cpu.hc_collapse(streams, want[0]), reference.hc_collapse(streams, want[0]), bf16)
    close(cpu.hc_expand(streams, out, *want[1:]), reference.hc_expand(streams, out, *want[1:]), bf16)
    close(cpu.mean_streams(streams), reference.mean_streams(streams), bf16)


@pytest.mark.parametrize("inverse", [False, True])
def test_rotation(cpu: Ops, reference: Ops, draw: Draw, bf16: bool, inverse: bool) -> None:
    angles = torch.rand(50, 16, generator=torch.Generator().manual_seed(1)) * 6
    x, positions = draw(11, 3, 64), torch.arange(11) * 4
    arguments = (angles.cos(), angles.sin(), positions, inverse)
    got, want = cpu.rotate_(x.clone(), *arguments), reference.rotate_(x.clone(), *arguments)
    close(got, want, bf16)
    assert torch.equal(got[..., :32], x[..., :32])


def test_compressor_pooling(cpu: Ops, reference: Ops, draw: Draw, bf16: bool) -> None:
    values, scores = draw(9, 2, 48), draw(9, 2, 48) * 5
    close(cpu.pool_pairs(values, scores), reference.pool_pairs(values, scores), bf16)


@pytest.mark.parametrize("heads", [1, 4, 5, 32])
def test_index_selection(cpu: Ops, reference: Ops, draw: Draw, heads: int) -> None:
    q, w, keys = draw(37, heads, 32), draw(37, heads), draw(400, 32)
    keys[100:140] = keys[60:100]  # exact ties
    base = torch.tensor([0] * 20 + [200] * 17)
    counts = torch.cat([torch.arange(180, 200), torch.arange(0, 170, 10)])
    arguments = (q, w, keys, base, counts, 200, 32, 12, 8)
    got, want = cpu.index_select(*arguments), reference.index_select(*arguments)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    within = (q, w, keys, base, counts, want[1], 8, 32)
    assert torch.equal(cpu.index_select_within(*within), reference.index_select_within(*within))


def test_equal_scores_go_to_the_lowest_index(cpu: Ops) -> None:
    q, w, keys = torch.ones(1, 1, 32), torch.ones(1, 1), torch.ones(100, 32)
    keys[::2] = -1.0  # every second score is exactly zero
    entries, blocks = cpu.index_select(q, w, keys, torch.tensor([0]), torch.tensor([100]), 100, 60, 4, 8)
    assert entries[0].tolist() == sorted([*range(1, 100, 2), *range(0, 20, 2)])
    assert blocks[0].tolist() == [0, 1, 2, 12]  # the newest block stays although its maximum is no larger


@pytest.mark.parametrize("heads", [1, 3, 4, 16, 32])
def test_sparse_attention(cpu: Ops, reference: Ops, draw: Draw, bf16: bool, heads: int) -> None:
    generator = torch.Generator().manual_seed(2)
    q, window, main, sink = draw(23, heads, 64), draw(90, 64), draw(70, 64), draw(heads)
    window_slots = torch.randint(-1, 90, (23, 33), generator=generator)
    main_slots = torch.randint(-1, 70, (23, 20), generator=generator)
    window_slots[4], main_slots[4] = -1, -1
    arguments = (q, window, window_slots, main, main_slots, sink)
    got = cpu.sparse_attention(*arguments)
    close(got, reference.sparse_attention(*arguments), bf16)
    assert not got[4].any()


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_router_and_experts(cpu: Ops, reference: Ops, draw: Draw, bf16: bool, limit: float) -> None:
    logits, bias, x = draw(37, 6) * 3, draw(6) * 0.1, draw(37, 64)
    got, want = cpu.route(logits, bias, 2, True, 1.5), reference.route(logits, bias, 2, True, 1.5)
    assert torch.equal(got[0], want[0])
    close(got[1], want[1], False)
    weights = [(draw(40, 64) * 0.1, draw(40, 64) * 0.1, draw(64, 40) * 0.1) for _ in range(7)]
    packed, shared = cpu.pack_experts(6, lambda e: weights[e]), cpu.pack_experts(1, lambda _: weights[6])
    mine = cpu.moe(x, *want, packed, shared, limit)
    close(mine, reference.moe(x, *want, weights[:6], weights[6:], limit), bf16)


def test_equal_router_scores_go_to_the_lowest_expert(cpu: Ops) -> None:
    ids, weights = cpu.route(torch.zeros(1, 8), torch.zeros(8), 3, True, 1.5)
    assert ids.tolist() == [[0, 1, 2]]
    assert len(set(weights[0].tolist())) == 1
    assert abs(float(weights[0, 0]) - 0.5) < 1e-6


def test_engram_gate(cpu: Ops, reference: Ops, draw: Draw, bf16: bool) -> None:
    streams, kv, gains = draw(9, 4, 64), draw(9, 5 * 64), draw(4, 64)
    close(cpu.engram_gate(streams, kv, gains, 1e-20), reference.engram_gate(streams, kv, gains, 1e-20), bf16)


@pytest.mark.parametrize("vocabulary", [100, 512, 4096])
def test_log_probabilities(cpu: Ops, reference: Ops, draw: Draw, vocabulary: int) -> None:
    logits = draw(19, vocabulary) * 4
    logits[:, 7] = logits[:, 3]
    targets = torch.arange(19) * 5
    targets[0], targets[1] = 7, 3
    got, want = cpu.token_logprobs(logits, targets), reference.token_logprobs(logits, targets)
    close(got[0], want[0], False)
    assert torch.equal(got[1], want[1])
    everything = cpu.log_softmax(logits)
    assert torch.equal(everything.gather(1, targets[:, None])[:, 0], got[0])
