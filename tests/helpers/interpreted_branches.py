"""What runs beside the main line, as early and as late as it may, in Triton's interpreter: JSON.

Profile fast; wanted are the bytes of the ops one after the other. A process of its own, because triton
decides at its first import whether it interprets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from exact_interpreter import make_exact

make_exact()

from deepinfer.kernels import chains  # noqa: E402
from deepinfer.kernels.draft_operands import DraftHead  # noqa: E402
from deepinfer.kernels.gpu.fast_backend import FastGpuOps  # noqa: E402
from deepinfer.kernels.operands import MoeWeights, SiteInput, SiteWeights  # noqa: E402

T = TypeVar("T")
GENERATOR = torch.Generator().manual_seed(4)
ROWS, STREAMS, WIDTH, VOCABULARY = 3, 4, 32, 40


class Late:
    """Branches that do nothing until somebody waits; a second lane's workspace meanwhile."""

    lane = 0

    def __init__(self) -> None:
        self.num_waits = 0

    def start(self, work: Callable[[], T], num_rows: int) -> Callable[[], T]:
        found: list[T] = []

        def wait() -> T:
            if not found:
                self.num_waits += 1
                self.lane = 1
                found.append(work())
                self.lane = 0
            return found[0]

        return wait


def normal(*shape: int) -> torch.Tensor:
    """Values that bfloat16 holds."""
    return torch.randn(shape, generator=GENERATOR).to(torch.bfloat16).to(torch.float32)


def cases(ops: FastGpuOps) -> dict[str, tuple[Any, ...]]:
    """Arguments by name of the chain."""
    site = SiteWeights(
        fn=ops.pack_linear(torch.randn(24, STREAMS * WIDTH, generator=GENERATOR) * 0.1),
        base=normal(24), scale=normal(3), gain=normal(WIDTH), iterations=4, hc_eps=1e-6, rms_eps=1e-6,
    )  # fmt: skip
    parts = [(normal(32, WIDTH), normal(32, WIDTH), normal(WIDTH, 32)) for _ in range(5)]
    moe = MoeWeights(
        gate=ops.pack_linear(normal(4, WIDTH)), bias=normal(4) * 0.1,
        experts=ops.pack_experts(4, parts.__getitem__), shared=ops.pack_experts(1, lambda _: parts[4]),
        num_selected=2, normalise=True, factor=1.5, limit=1.0,
    )  # fmt: skip
    head = DraftHead(
        gain=normal(WIDTH), eps=1e-6, head=ops.pack_linear(normal(VOCABULARY, WIDTH)),
        embed=normal(VOCABULARY, 8), markov=ops.pack_linear(normal(VOCABULARY, 8)),
        confidence=ops.pack_linear(normal(1, WIDTH + 8)),
    )  # fmt: skip
    streams, pre = normal(ROWS, STREAMS, WIDTH), normal(ROWS, STREAMS)
    mixes = normal(ROWS, STREAMS), normal(ROWS, STREAMS), normal(ROWS, STREAMS, STREAMS)
    entered = SiteInput(normal(ROWS, WIDTH), lambda: mixes)
    two, of_two = normal(4, STREAMS, WIDTH), normal(4, STREAMS)
    return {
        "site_input": (streams, pre, site),
        "next_site": (streams, normal(ROWS, WIDTH), entered, site),
        "routed_moe": (normal(ROWS, WIDTH), moe),
        "moe_expand": (streams, entered, moe),
        "moe_next_site": (streams, entered, moe, site),
        "draft_decode": (two, of_two, torch.tensor([5, 39]), head),
    }


def parts_of(result: Any) -> list[torch.Tensor]:
    """Tensors of a result in the order of their names or places."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, tuple):
        return [part for one in result for part in parts_of(one)]
    of_site, of_drafts = ("pre", "post", "comb", "x"), ("hidden", "tokens", "logits", "confidences")
    names = of_site if hasattr(result, "comb") else of_drafts
    return [getattr(result, name) for name in names]


def main() -> None:
    """Each chain three ways, and one whose operand changes before it is waited for."""
    device = torch.device("cpu")
    early, late = FastGpuOps(True, device), FastGpuOps(True, device)
    branches: Any = Late()
    late.branches = branches
    found = {}
    given = cases(early)
    for name, arguments in given.items():
        wanted = parts_of(getattr(chains, name)(early, *arguments))
        ways = {"early": early, "late": late}
        bad = [
            way
            for way, ops in ways.items()
            for a, b in zip(wanted, parts_of(getattr(ops, name)(*arguments)), strict=True)
            if a.numpy().tobytes() != b.numpy().tobytes()
        ]
        found[name] = sorted(set(bad))
    num_waits = branches.num_waits
    streams, pre, site = given["site_input"]
    changed = late.site_input(streams, pre, site)
    wanted = early.site_input(streams, pre, site).post
    streams += 1.0
    control = not torch.equal(changed.post, wanted)
    print(json.dumps({"different": found, "num_waits": num_waits, "control": control}))


if __name__ == "__main__":
    main()
