"""One launch of each Gluon kernel, for a profiler: ``ncu ... python3 -P benchmarks/profile_hopper.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "helpers")]

import layers_attention as shapes  # noqa: E402
import layers_experts as experts  # noqa: E402

from deepinfer.kernels.gpu import hopper_experts, packed_ops  # noqa: E402
from deepinfer.kernels.gpu.expert_groups import plan_tiles  # noqa: E402
from deepinfer.kernels.gpu.select16 import select_within  # noqa: E402
from deepinfer.kernels.gpu.select_blocks import best_blocks  # noqa: E402


def main() -> None:
    """Decode attention, scan, candidates and selection at batch 64 and 128k; experts at 8,192 rows."""
    caches = shapes.Caches(64, shapes.CONTEXT, "cuda", True)
    q, iq, w = shapes._queries(64, "cuda")
    near, far = caches.slots(64)
    packed_ops.attend(q, caches.window, near, caches.main, far, torch.randn(64, device="cuda"))
    counts = torch.full((64,), shapes.CONTEXT, device="cuda", dtype=torch.int32)
    args = (caches.index, caches.table, counts)
    _, best = packed_ops.scan(iq, w, *args, shapes.CONTEXT, shapes.BLOCK, keys=False, best=True)
    candidates, own = best_blocks(best, counts, shapes.BLOCK, shapes.BLOCKS, shapes.TOP)
    keys, _ = packed_ops.scan(iq, w, *args, shapes.TOP * shapes.BLOCK, shapes.BLOCK, blocks=own)
    select_within(keys, counts, shapes.TOP, own, shapes.BLOCK)
    blocks = candidates.blocks
    keys, _ = packed_ops.scan(iq, w, *args, shapes.BLOCKS * shapes.BLOCK, shapes.BLOCK, blocks=blocks)
    select_within(keys, counts, shapes.TOP, blocks, shapes.BLOCK)
    if "--attention" in sys.argv:
        torch.cuda.synchronize()
        return
    layer = experts.Layer()
    x, ids, shares = experts._draw(8192)
    tiles = plan_tiles(ids, experts.EXPERTS, 128)
    hopper_experts.inner_products(x, tiles, shares, layer.gate, layer.up, 10.0)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
