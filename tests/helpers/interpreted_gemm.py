"""The bf16 GEMM in the exact interpreter: prints every tile and row count whose rows differ, as JSON.

All tiles, ways of summing chunks and row counts must give one answer for one chunk; another chunk must not.
"""

from __future__ import annotations

import json

import torch
from exact_interpreter import make_exact

make_exact()

from deepinfer.kernels.gpu.gemm import BY_LAST, BY_SECOND, IN_LOOP, Tile, Workspace, gemm  # noqa: E402

DEPTH, OUTPUTS, ROWS = 320, 40, 40
TILES = [
    Tile(16, 16, 64, 2, 4, BY_LAST),
    Tile(32, 16, 128, 2, 4, BY_SECOND),
    Tile(64, 64, 128, 2, 4, IN_LOOP),
    Tile(32, 32, 64, 2, 4, BY_LAST),
]


def main() -> None:
    """Compare with the first tile on all rows."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, DEPTH, generator=generator).to(torch.bfloat16)
    w = torch.randn(OUTPUTS, DEPTH, generator=generator).to(torch.bfloat16)
    workspace = Workspace.on(torch.device("cpu"), 1 << 16, 64)

    def rows(low: int, high: int, chunk: int, tile: Tile) -> torch.Tensor:
        out = torch.full((high - low, OUTPUTS), float("nan"))
        return gemm(x[low:high], w, out, chunk, tile, workspace)

    whole, wrong = rows(0, ROWS, 128, TILES[0]), []
    for tile in TILES:
        for low, high in ((0, 1), (33, 34), (0, 16), (7, 24), (0, ROWS)):
            if not torch.equal(rows(low, high, 128, tile), whole[low:high]):
                wrong.append(f"rows {low} to {high} of {tile}")
    exact = x.double() @ w.double().T
    print(
        json.dumps(
            {
                "wrong": wrong,
                "counters_left": int(workspace.counters.abs().sum()),
                "error": float((whole.double() - exact).norm() / exact.norm()),
                "moved_by_another_chunk": int((rows(0, ROWS, 256, TILES[2]) != whole).sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
