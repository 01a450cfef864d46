"""Compile the products of native experts for two chips; print the matrix instructions of each as JSON."""

from __future__ import annotations

import json
import re

import torch
from compile_only import compile_only

MATRIX = re.compile(r"\b(?:tcgen05\.mma|wgmma\.mma_async|mma\.sync)[\w.:]*")
FOUND: dict[str, set[str]] = {}


def main() -> None:
    """One that has such products, and one that widens their operands first."""
    compile_only(lambda name, ptx: FOUND.setdefault(name, set()).update(MATRIX.findall(ptx)))
    from triton.runtime import driver

    from deepinfer.kernels.gpu import native_experts
    from deepinfer.kernels.gpu.expert_groups import Tiles
    from deepinfer.kernels.gpu.native_weights import NativeWeights, SplitRows

    def fake(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8)

    one = torch.zeros(1, dtype=torch.int32)
    tiles = Tiles(torch.zeros(8, dtype=torch.int64), one, one, one)
    rows = SplitRows(fake(2, 4, 512), fake(2, 4, 16))
    weight = NativeWeights(fake(4, 256, 256), fake(4, 256, 16))
    answer = {}
    for architecture in (100, 90):
        driver.active.architecture = architecture
        native_experts._product_kernel.function.device_caches.clear()
        native_experts.products(rows, tiles, weight, 2)
        answer[str(architecture)] = sorted(FOUND.pop("native_experts._product_kernel"))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
