"""The chains of drafting in compiled calls give the bytes of their ops, for any company of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial

import pytest
import torch

from deepinfer.engine.cache.record_pool import RecordFormat, RecordPool
from deepinfer.kernels import draft_chains
from deepinfer.kernels.cpu.backend import CpuOps
from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, WindowLayer
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import LowRank, MoeWeights, Rotary, SiteWeights

Draw = Callable[..., torch.Tensor]
D, STREAMS, HEADS, WIDTH, BLOCK, WINDOW = 48, 4, 4, 32, 5, 9
FORMAT, EXACT = RecordFormat("mxfp8", WIDTH, WIDTH, WIDTH // 32), RecordFormat("exact", WIDTH, 4 * WIDTH, 0)


def bits(x: torch.Tensor) -> bytes:
    return bytes(x.contiguous().numpy().tobytes())


def cpu_ops(bf16: bool = False, round_caches: bool = True) -> CpuOps:
    ops = select_ops("cpu", bf16=bf16, round_caches=round_caches, num_threads=2)
    assert isinstance(ops, CpuOps)
    ops.workers.handoff_cost = 0  # threads even where they do not pay
    return ops


def site(ops: Ops, draw: Draw) -> SiteWeights:
    return SiteWeights(
        fn=ops.pack_linear(draw(24, STREAMS * D) * 0.1),
        base=draw(24),
        scale=draw(3),
        gain=draw(D),
        iterations=20,
        hc_eps=1e-6,
        rms_eps=1e-20,
    )


def layer(ops: Ops, draw: Draw) -> WindowLayer:
    """Seven experts; float32 weights in some places, bfloat16 in others."""
    parts = [[draw(24, D) * 0.2, (draw(24, D) * 4).round() / 8, draw(D, 24)] for _ in range(8)]
    moe = MoeWeights(
        gate=ops.pack_linear(draw(7, D)),
        bias=draw(7) * 0.1,
        experts=ops.pack_experts(7, lambda e: (parts[e][0], parts[e][1], parts[e][2])),
        shared=ops.pack_experts(1, lambda _: (parts[7][0], parts[7][1], parts[7][2])),
        num_selected=2,
        normalise=True,
        factor=1.5,
        limit=1.0,
    )
    query = LowRank(
        down=ops.pack_linear(draw(24, D)),
        gain=draw(24),
        up=ops.pack_linear(draw(HEADS * WIDTH, 24).round()),
        eps=1e-20,
    )
    return WindowLayer(
        attn_site=site(ops, draw),
        ffn_site=site(ops, draw),
        query=query,
        num_heads=HEADS,
        latent=ops.pack_linear(draw(WIDTH, D)),
        latent_gain=draw(WIDTH),
        wo_a=ops.pack_linear(draw(2, 24, HEADS * WIDTH // 2)),
        wo_b=ops.pack_linear(draw(D, 48)),
        sink=draw(HEADS),
        eps=1e-20,
        moe=moe,
    )


def case(ops: Ops, draw: Draw, num_blocks: int, size: int = BLOCK) -> tuple[object, ...]:
    """Arguments of ``window_layers``: two layers, blocks that see some of their window or nothing."""
    pools = []
    for _ in range(2):
        pool = RecordPool(FORMAT, num_blocks, WINDOW)
        pool.store(ops, draw(num_blocks * WINDOW, WIDTH), torch.arange(num_blocks * WINDOW))
        pools.append(pool.bound(ops))
    rows = num_blocks * size
    records = torch.arange(num_blocks * WINDOW).flip(0)
    places = torch.arange(num_blocks * WINDOW).view(num_blocks, WINDOW).clone()
    for block in range(num_blocks):
        places[block, : block % (WINDOW + 1)] = -1
    own = torch.arange(rows).view(num_blocks, size)
    rotary = Rotary(draw(300, 8), draw(300, 8), torch.arange(rows) % 290)
    streams, pre = draw(rows, STREAMS, D), draw(rows, STREAMS).abs()
    layers = [layer(ops, draw), layer(ops, draw)]
    seen = (places.repeat_interleave(size, 0), own.repeat_interleave(size, 0))
    return streams, pre, layers, rotary, pools, records, *seen


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("round_caches", [False, True])
@pytest.mark.parametrize(("num_blocks", "size"), [(1, 1), (1, 2), (1, 5), (2, 3), (2, 5), (45, 5)])
def test_layers_in_compiled_calls_are_their_ops(
    num_blocks: int, size: int, round_caches: bool, bf16: bool, draw: Draw
) -> None:
    ops = cpu_ops(bf16, round_caches)
    given = case(ops, draw, num_blocks, size)
    kept = bits(given[0]), bits(given[1])  # type: ignore[arg-type]
    one = ops.window_layers(*given)  # type: ignore[arg-type]
    other = draft_chains.window_layers(ops, *given)  # type: ignore[arg-type]
    assert [bits(x) for x in one] == [bits(x) for x in other]
    assert (bits(given[0]), bits(given[1])) == kept, "a chain changed its input"  # type: ignore[arg-type]


def test_a_block_alone_is_the_block_in_company(draw: Draw) -> None:
    ops = cpu_ops()
    streams, pre, layers, rotary, pools, records, places, own = case(ops, draw, 45)
    whole, _ = ops.window_layers(streams, pre, layers, rotary, pools, records, places, own)  # type: ignore[arg-type]
    for block in (0, 20, 44):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        here = replace(rotary, positions=rotary.positions[rows])  # type: ignore[type-var, attr-defined]
        alone, _ = ops.window_layers(
            streams[rows],  # type: ignore[index]
            pre[rows],  # type: ignore[index]
            layers,  # type: ignore[arg-type]
            here,  # type: ignore[arg-type]
            pools,  # type: ignore[arg-type]
            records,  # type: ignore[arg-type]
            places[rows],  # type: ignore[index]
            own[rows] - block * BLOCK,  # type: ignore[index]
        )
        assert bits(alone) == bits(whole[rows])


def test_a_layer_that_reads_the_next_block_is_found(draw: Draw) -> None:
    ops = cpu_ops()
    *given, own = case(ops, draw, 3)
    moved = (own + BLOCK) % (3 * BLOCK)  # type: ignore[operator]
    assert bits(ops.window_layers(*given, moved)[0]) != bits(ops.window_layers(*given, own)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("num_blocks", [1, 4])
def test_rows_of_blocks_are_their_ops(num_blocks: int, draw: Draw) -> None:
    """A block at the beginning of its text, one behind kept rows, and ones whose rings have gone round."""
    ops, shape = cpu_ops(), BlockShape(size=BLOCK, window=WINDOW, noise_token_id=3, num_streams=STREAMS)
    golden, positions = torch.tensor([5, 69, 0, 7])[:num_blocks], torch.tensor([4, 40, 200, 77])[:num_blocks]
    slots, low = torch.tensor([2, 0, 1, 5])[:num_blocks], torch.tensor([0, 36, 0, 77])[:num_blocks]
    given = (golden, positions, slots, low, draw(70, D), shape, WINDOW + 6)
    one, other = ops.draft_rows(*given), draft_chains.draft_rows(ops, *given)
    for mine, theirs in zip(astuple(one), astuple(other), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert bits(mine) == bits(theirs)
    assert (one.records == -1).sum() == WINDOW - 4 + (num_blocks == 4) * (WINDOW - 4 + WINDOW)


def decoding_head(ops: Ops, draw: Draw, vocabulary: int, rank: int = 12) -> DraftHead:
    return DraftHead(
        gain=draw(D),
        eps=1e-20,
        head=ops.pack_linear(draw(vocabulary, D)),
        embed=draw(vocabulary, rank).round(),
        markov=ops.pack_linear((draw(vocabulary, rank) > 1).float()),
        confidence=ops.pack_linear(draw(1, D + rank)),
    )


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("num_drafts", [1, 3, 5])
@pytest.mark.parametrize("num_blocks", [1, 4])
def test_decoding_is_its_ops(num_blocks: int, num_drafts: int, bf16: bool, draw: Draw) -> None:
    ops, vocabulary = cpu_ops(bf16), 70
    head = decoding_head(ops, draw, vocabulary)
    rows = num_blocks * num_drafts
    golden = torch.arange(num_blocks) * 7 % vocabulary
    streams, pre = draw(rows, STREAMS, D), draw(rows, STREAMS)
    given = (streams, pre, golden, head)
    one, other = ops.draft_decode(*given), draft_chains.draft_decode(ops, *given)
    assert [bits(x) for x in astuple(one)] == [bits(x) for x in astuple(other)]
    assert one.logits.shape == (num_blocks, num_drafts, vocabulary)
    first = [x.unflatten(0, (num_blocks, num_drafts))[:, 0] for x in (streams, pre)]
    shorter = ops.draft_decode(*first, golden, head)
    assert bits(shorter.logits) == bits(one.logits[:, :1]), "fewer drafts are the same ones"


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_contexts_are_their_ops(num_rows: int, bf16: bool, draw: Draw) -> None:
    ops = cpu_ops(bf16)
    layers = [layer(ops, draw), layer(ops, draw)]
    projection, gain = ops.pack_linear(draw(D, 2 * D)), draw(D)
    rotary = Rotary(draw(300, 8), draw(300, 8), torch.arange(num_rows) + 7)
    given = (draw(num_rows, 2 * D), projection, gain, 1e-20, layers, rotary)
    one, other = ops.draft_contexts(*given), draft_chains.draft_contexts(ops, *given)
    assert [bits(x) for x in one] == [bits(x) for x in other]
    for form in (FORMAT, EXACT):
        kept, wanted = [], []
        records = torch.arange(num_rows).flip(0) * 2 - int(num_rows == 3)  # -1: a row that nobody will see
        for keep, buffers in ((ops.keep_contexts, kept), (partial(draft_chains.keep_contexts, ops), wanted)):
            pools = [RecordPool(form, 9, 9) for _ in layers]
            keep(*given, [pool.bound(ops) for pool in pools], records)
            buffers += [bits(pool.buffer) for pool in pools]
        assert kept == wanted
        assert len(set(kept)) == len(layers)
        with pytest.raises(ValueError, match="neither -1 nor"):
            ops.keep_contexts(*given, [pool.bound(ops) for pool in pools], records + 81)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("round_caches", [False, True])
@pytest.mark.parametrize(("num_blocks", "size"), [(1, 1), (1, 2), (4, 5), (150, 3)])
def test_drafting_in_one_call_is_its_ops(
    num_blocks: int, size: int, round_caches: bool, bf16: bool, draw: Draw
) -> None:
    """The last case is more than two threads do at once."""
    ops, vocabulary = cpu_ops(bf16, round_caches), 70
    ring, slots = WINDOW + 6, torch.arange(num_blocks) * 3 % num_blocks
    positions = torch.arange(num_blocks) * 11 % 200
    layers, pools = [layer(ops, draw), layer(ops, draw)], []
    for _ in layers:
        pool = RecordPool(FORMAT if round_caches else EXACT, num_blocks, ring)
        pool.store(ops, draw(num_blocks * ring, WIDTH), torch.arange(num_blocks * ring))
        pools.append(pool.bound(ops))
    head = decoding_head(ops, draw, vocabulary)
    rotary = Rotary(draw(300, 8), draw(300, 8), positions)
    shape = BlockShape(size=size, window=WINDOW, noise_token_id=3, num_streams=STREAMS)
    golden, low = torch.arange(num_blocks) * 7 % vocabulary, (positions - WINDOW + 2).clamp(min=0)
    given = (golden, positions, slots, low, draw(vocabulary, D), shape, ring, rotary, layers, pools, head)
    one, other = ops.draft_block(*given)(), draft_chains.draft_block(ops, *given)()
    for mine, theirs in zip(astuple(one), astuple(other), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert bits(mine) == bits(theirs)
    with pytest.raises(ValueError, match="neither -1 nor"):
        ops.draft_block(golden, positions + 50, slots + num_blocks, *given[3:])()
    moved = ops.draft_block(golden, positions + 1, *given[2:])()
    assert bits(moved.hidden) != bits(one.hidden)
