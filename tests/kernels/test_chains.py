"""A chain in one call gives the bytes of its ops one by one, and keeps them in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deepinfer.kernels import chains
from deepinfer.kernels.cpu.backend import CpuOps
from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import LowRank, MoeWeights, Rotary, SiteWeights

Draw = Callable[..., torch.Tensor]
Chain = Callable[[Any, Ops, torch.Tensor], tuple[torch.Tensor, ...]]
"""``chain(owner, ops, rows)``; ``owner`` is the kernel set, or the module that defines the chains."""

D, STREAMS, HEADS, WIDTH = 48, 4, 4, 32
NAMES = ["site_input", "low_rank_query", "rotated_latent", "attention_output", "routed_moe"]


def bits(x: torch.Tensor) -> bytes:
    return bytes(x.contiguous().numpy().tobytes())


def make(name: str, ops: Ops, draw: Draw) -> Callable[[Any, Ops, torch.Tensor, torch.Tensor], Any]:
    """The chain ``name`` on rows [T, ...] at positions [T], from ``owner`` (ops, or the definitions)."""
    cos, sin = draw(600, 8), draw(600, 8)

    def call(owner: Any, on: Ops, *arguments: Any) -> Any:
        function = getattr(owner, name)
        return function(*arguments) if owner is on else function(on, *arguments)

    if name == "site_input":
        site = SiteWeights(
            fn=ops.pack_linear(draw(24, STREAMS * D) * 0.1),
            base=draw(24),
            scale=draw(3),
            gain=draw(D),
            iterations=20,
            hc_eps=1e-6,
            rms_eps=1e-20,
        )

        def run(owner: Any, on: Ops, x: torch.Tensor, positions: torch.Tensor) -> Any:
            out = call(owner, on, x.view(-1, STREAMS, D), x[:, :STREAMS].contiguous(), site)
            return out.pre, out.post, out.comb, out.x

        return run
    if name == "low_rank_query":
        query = LowRank(
            down=ops.pack_linear(draw(24, STREAMS * D) * 0.1),
            gain=draw(24),
            up=ops.pack_linear(draw(HEADS * WIDTH, 24)),
            eps=1e-20,
        )
        return lambda owner, on, x, p: call(owner, on, x, query, HEADS, Rotary(cos, sin, p))
    if name == "rotated_latent":
        weight, gain = ops.pack_linear(draw(WIDTH, STREAMS * D) * 0.1), draw(WIDTH)
        return lambda owner, on, x, p: (call(owner, on, x, weight, gain, 1e-20, Rotary(cos, sin, p)),)
    if name == "attention_output":
        wo_a, wo_b = ops.pack_linear(draw(2, 24, STREAMS * D // 2)), ops.pack_linear(draw(40, 48))
        return lambda owner, on, x, p: (
            call(owner, on, x.view(-1, HEADS, D), Rotary(cos, sin, p), wo_a, wo_b),
        )
    parts = [
        [draw(24, STREAMS * D) * 0.2, draw(24, STREAMS * D) * 0.2, draw(STREAMS * D, 24)] for _ in range(9)
    ]
    moe = MoeWeights(
        gate=ops.pack_linear(draw(8, STREAMS * D)),
        bias=draw(8) * 0.1,
        experts=ops.pack_experts(8, lambda e: (parts[e][0], parts[e][1], parts[e][2])),
        shared=ops.pack_experts(1, lambda _: (parts[8][0], parts[8][1], parts[8][2])),
        num_selected=2,
        normalise=True,
        factor=1.5,
        limit=1.0,
    )
    return lambda owner, on, x, p: call(owner, on, x, moe)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_chain_is_its_ops_one_by_one(name: str, bf16: bool, draw: Draw) -> None:
    ops = select_ops("cpu", bf16=bf16, num_threads=2)
    assert isinstance(ops, CpuOps)
    ops.workers.handoff_cost = 0  # threads even where they do not pay
    run = make(name, ops, draw)
    rows, positions = draw(300, STREAMS * D), torch.arange(300) + 7
    kept = rows.clone()
    whole = run(ops, ops, rows, positions)
    assert bits(rows) == bits(kept), "a chain changed its input"
    for got, want in zip(whole, run(chains, ops, rows, positions), strict=True):
        assert bits(got) == bits(want)
    for count in (1, 2, 7, 15, 16, 17, 95, 96, 97, 129):
        part = run(ops, ops, rows[-count:], positions[-count:])
        for got, want in zip(part, whole, strict=True):
            assert bits(got) == bits(want[-count:]), f"the last {count} rows differ in a call of their own"


def test_a_chain_that_skips_an_op_is_found(monkeypatch: pytest.MonkeyPatch, draw: Draw) -> None:
    ops = select_ops("cpu", bf16=False, num_threads=1)
    run = make("attention_output", ops, draw)
    rows, positions = draw(5, STREAMS * D), torch.arange(5) + 7
    want = run(chains, ops, rows, positions)
    monkeypatch.setattr("deepinfer.kernels.cpu.chains.rotate_kernel", lambda *arguments: None)
    assert bits(run(ops, ops, rows, positions)[0]) != bits(want[0])
