"""One row of any op equals the same row in any batch, at any place, on any number of threads.

Compared as bytes.

Rows come from separate calls. Every case runs over odd widths (24, 1000) and over row counts around every
tile edge.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.kernels.interface import Ops

Draw = Callable[..., torch.Tensor]
COUNTS = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512]
Op = Callable[[Ops, torch.Tensor], torch.Tensor]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = torch.int32 if a.dtype == torch.float32 else a.dtype
    return torch.equal(a.view(kind), b.view(kind))


def check_rows(op: Op, rows: torch.Tensor, cpu: Ops, single: Ops) -> None:
    """``op`` maps packed rows to packed results; row i of the result may depend on row i alone."""
    whole = op(cpu, rows)
    assert same_bytes(whole, op(single, rows)), "the number of threads moved a bit"
    probes = [0, 1, 100, 511]
    for probe in probes:
        alone = op(cpu, rows[probe : probe + 1])
        assert same_bytes(alone[0], whole[probe]), f"row {probe} differs alone"
    for count in COUNTS:
        part = op(cpu, rows[512 - count :])
        assert same_bytes(part, whole[512 - count :]), f"the last {count} rows differ in a call of their own"
    strided = torch.stack([rows, -rows], 1)[:, 0]  # not contiguous
    assert same_bytes(op(cpu, strided), whole), "strided input moved a bit"
    offset = torch.cat([rows.flatten()[:1], rows.flatten()])[1:].view(rows.shape)  # not aligned
    assert same_bytes(op(cpu, offset), whole), "offset input moved a bit"


@pytest.mark.parametrize(("inputs", "outputs"), [(256, 128), (24, 1000), (1000, 24)])
def test_linear(cpu: Ops, single: Ops, draw: Draw, inputs: int, outputs: int) -> None:
    weight = cpu.pack_linear(draw(outputs, inputs))
    check_rows(lambda ops, x: ops.linear(x, weight), draw(512, inputs), cpu, single)
    check_rows(lambda ops, x: ops.linear_fp32(x, weight), draw(512, inputs), cpu, single)


@pytest.mark.parametrize("width", [24, 256, 1000])
def test_norm_scale_and_sigmoid(cpu: Ops, single: Ops, draw: Draw, width: int) -> None:
    gain = draw(width)
    check_rows(lambda ops, x: ops.rms_norm(x, gain, 1e-20), draw(512, width), cpu, single)
    check_rows(lambda ops, x: ops.sigmoid(x), draw(512, width), cpu, single)
    check_rows(lambda ops, x: ops.scale(x, 0.3), draw(512, width), cpu, single)
    check_rows(lambda ops, x: ops.log_softmax(x), draw(512, width), cpu, single)


def test_hyper_connection(cpu: Ops, single: Ops, draw: Draw) -> None:
    fn, base, scale = cpu.pack_linear(draw(24, 96) * 0.1), draw(24), draw(3)

    def site(ops: Ops, flat: torch.Tensor) -> torch.Tensor:
        streams = flat.reshape(-1, 4, 24)
        pre, post, comb = ops.hc_mix(streams, fn, base, scale, 20, 1e-6, 1e-20)
        out = ops.hc_collapse(streams, pre)
        return ops.hc_expand(streams, out, post, comb).flatten(1)

    check_rows(site, draw(512, 96), cpu, single)


def test_experts(cpu: Ops, single: Ops, draw: Draw) -> None:
    parts = [(draw(24, 64) * 0.2, draw(24, 64) * 0.2, draw(64, 24) * 0.2) for _ in range(9)]
    experts, shared = cpu.pack_experts(8, lambda e: parts[e]), cpu.pack_experts(1, lambda _: parts[8])
    gate, bias = cpu.pack_linear(draw(8, 64)), draw(8) * 0.1

    def layer(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        ids, weights = ops.route(ops.linear_fp32(x, gate), bias, 2, True, 1.5)
        return ops.moe(x, ids, weights, experts, shared, 1.0)

    check_rows(layer, draw(512, 64), cpu, single)


@pytest.mark.parametrize("heads", [4, 16])
def test_attention(cpu: Ops, single: Ops, draw: Draw, heads: int) -> None:
    window, main, sink = draw(600, 32), draw(300, 32), draw(heads)
    generator = torch.Generator().manual_seed(3)
    near = torch.randint(-1, 600, (512, 17), generator=generator)
    far = torch.randint(-1, 300, (512, 9), generator=generator)

    def attend(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        start = 512 - len(x)
        if len(x) == 1:  # a probe row: find its own slots
            start = int((rows == x[0]).all(1).nonzero()[0, 0])
        slots = slice(start, start + len(x))
        q = x.reshape(len(x), heads, 32)
        return ops.sparse_attention(q, window, near[slots], main, far[slots], sink).flatten(1)

    rows = draw(512, heads * 32)
    check_rows(attend, rows, cpu, single)


def test_index_selection(cpu: Ops, single: Ops, draw: Draw) -> None:
    keys, counts = draw(700, 32), torch.arange(100, 612)

    def select(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        start = 512 - len(x)
        if len(x) == 1:
            start = int((rows == x[0]).all(1).nonzero()[0, 0])
        q, w = x[:, :128].reshape(-1, 4, 32), x[:, 128:]
        visible, base = counts[start : start + len(x)], torch.zeros(len(x), dtype=torch.int64)
        entries, blocks = ops.index_select(q, w, keys, base, visible, 700, 40, 6, 8)
        return torch.cat(
            [entries, blocks, ops.index_select_within(q, w, keys, base, visible, blocks, 8, 24)], 1
        )

    rows = draw(512, 132)
    check_rows(select, rows, cpu, single)


def test_grouped_linear(cpu: Ops, single: Ops, draw: Draw) -> None:
    weight = cpu.pack_linear(draw(2, 40, 24))
    check_rows(lambda ops, x: ops.linear(x, weight), draw(512, 48), cpu, single)


@pytest.mark.parametrize("width", [24, 1000])
def test_streams_and_pooled_pairs(cpu: Ops, single: Ops, draw: Draw, width: int) -> None:
    gains = draw(4, width)

    def remembered(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        streams, kv = x[:, : 4 * width].reshape(-1, 4, width), x[:, 4 * width :]
        gated = ops.engram_gate(streams, kv, gains, 1e-20)
        return torch.cat([gated.flatten(1), ops.mean_streams(streams)], 1)

    def pooled(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        values, scores = x.reshape(-1, 2, 2, width).unbind(1)
        return ops.pool_pairs(values, scores)

    check_rows(remembered, draw(512, 9 * width), cpu, single)
    check_rows(pooled, draw(512, 4 * width), cpu, single)


def test_rotation(cpu: Ops, single: Ops, draw: Draw) -> None:
    angles = torch.rand(512, 12, generator=torch.Generator().manual_seed(1)) * 6
    cos, sin = angles.cos(), angles.sin()

    def turned(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        start = 512 - len(x)
        if len(x) == 1:
            start = int((rows == x[0]).all(1).nonzero()[0, 0])
        positions = torch.arange(start, start + len(x))
        return ops.rotate_(x.reshape(-1, 3, 40).clone(), cos, sin, positions).flatten(1)

    rows = draw(512, 120)
    check_rows(turned, rows, cpu, single)


def test_round_trips_of_the_caches(cpu: Ops, single: Ops, draw: Draw) -> None:
    def rounded(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        copies = [x.contiguous().clone() for _ in range(3)]
        return torch.cat([ops.mxfp8_(copies[0]), ops.mxfp4_(copies[1]), ops.fp4_(copies[2])], 1)

    check_rows(rounded, draw(512, 96), cpu, single)


@pytest.mark.parametrize("vocabulary", [24, 1000])
def test_log_probabilities_of_tokens(cpu: Ops, single: Ops, draw: Draw, vocabulary: int) -> None:
    def scored(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        targets = (x[:, 0].abs() * 7).long() % vocabulary
        logprobs, ranks = ops.token_logprobs(x, targets)
        return torch.stack([logprobs, ranks.to(torch.float32)], 1)

    check_rows(scored, draw(512, vocabulary), cpu, single)


def test_the_check_sees_a_sum_whose_order_depends_on_the_batch(cpu: Ops, single: Ops, draw: Draw) -> None:
    """Negative control: a reduction that is cut elsewhere when the number of rows is odd."""

    def faulty(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        cut = 400 if len(x) % 2 else 500
        ones = [ops.pack_linear(torch.ones(1, size)) for size in (cut, 1000 - cut)]
        return ops.linear_fp32(x[:, :cut], ones[0]) + ops.linear_fp32(x[:, cut:], ones[1])

    with pytest.raises(AssertionError, match="differ"):
        check_rows(faulty, draw(512, 1000), cpu, single)


def test_the_check_sees_a_sum_whose_order_depends_on_threads(cpu: Ops, single: Ops, draw: Draw) -> None:
    """Negative control: a reduction split by the number of threads."""

    def faulty(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        cut = 1 if ops is single else 500
        ones = [ops.pack_linear(torch.ones(1, size)) for size in (cut, 1000 - cut)]
        return ops.linear_fp32(x[:, :cut], ones[0]) + ops.linear_fp32(x[:, cut:], ones[1])

    with pytest.raises(AssertionError, match="threads"):
        check_rows(faulty, draw(512, 1000), cpu, single)
