"""The GEMM of profile fast in the exact interpreter: prints tiles and row counts whose rows differ, as JSON.

All tiles, ways of summing chunks and row counts must give one answer for one chunk; another chunk must not.
"""

from __future__ import annotations

import json

import torch
from exact_interpreter import make_exact

make_exact()

from deepinfer.kernels.gpu.fast_linear import linear, pack_parts  # noqa: E402
from deepinfer.kernels.gpu.fp8_weights import exact_fp8, pack_fp8  # noqa: E402
from deepinfer.kernels.gpu.gemm import BY_LAST, BY_SECOND, IN_LOOP, Tile, Workspace, gemm  # noqa: E402
from deepinfer.kernels.gpu.gemm_few import FewTile, gemm_few  # noqa: E402

DEPTH, OUTPUTS, ROWS = 320, 40, 40
TILES = [
    Tile(16, 16, 64, 2, 4, BY_LAST),
    Tile(32, 16, 128, 2, 4, BY_SECOND),
    Tile(64, 64, 128, 2, 4, IN_LOOP),
    Tile(32, 32, 64, 2, 4, BY_LAST),
]


def fp8_differences(workspace: Workspace) -> dict[str, int]:
    """Layers of FP8 weights against the same weights in bfloat16: values whose bytes differ, by groups.

    Scales differ by block, codes have subnormals and both zeros; ``control`` has one scale of another.
    """
    generator = torch.Generator().manual_seed(6)
    differ = {}
    for groups, outputs, inputs in ((1, 96, 320), (2, 32, 128)):
        rows = groups * outputs
        steps = torch.randint(0, 256, (rows, inputs), generator=generator, dtype=torch.uint8)
        steps[(steps & 127) == 127] = 0x80
        powers = torch.randint(110, 130, (rows // 32, inputs // 32), generator=generator).to(torch.uint8)
        wide = powers.to(torch.float32).repeat_interleave(32, 0).repeat_interleave(32, 1)
        dense = torch.ldexp(steps.view(torch.float8_e4m3fn).to(torch.float32), wide - 127)
        found = exact_fp8(dense)
        assert found is not None
        codes, scales = found
        wrong = scales.clone()
        wrong[1, 3] += 1
        x = torch.randn(5, groups * inputs, generator=generator).to(torch.bfloat16).to(torch.float32)
        wanted = linear(x, pack_parts(dense.view(groups, outputs, inputs), x.device), workspace, False)
        for name, scale in (("", scales), ("control ", wrong)):
            got = linear(x, pack_fp8(codes, scale, groups), workspace, False)
            differ[f"{name}{groups}"] = int((got.view(torch.int32) != wanted.view(torch.int32)).sum())
    inexact = dense.clone()
    inexact[0, 0] = 1.0 + 2.0**-5
    differ["inexact"] = int(exact_fp8(inexact) is not None)
    return differ


def group_differences(workspace: Workspace) -> dict[str, int]:
    """Three groups in one launch against a launch each: values whose bytes differ, by chunk.

    ``control`` has the weights of two groups exchanged.
    """
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(5, 3 * 256, generator=generator).to(torch.bfloat16).to(torch.float32)
    w = torch.randn(3, OUTPUTS, 256, generator=generator).to(torch.bfloat16)
    tile, differ = Tile(32, 16, 128, 2, 4, BY_LAST), {}
    for chunk in (128, 256):
        wanted = torch.full((5, 3 * OUTPUTS), float("nan"))
        for g in range(3):
            part = x[:, 256 * g : 256 * (g + 1)].contiguous()
            own = torch.empty(5, OUTPUTS)
            wanted[:, OUTPUTS * g : OUTPUTS * (g + 1)] = gemm(part, w[g], own, chunk, tile, workspace, True)
        for name, weights in (("", w), ("control ", w[[1, 0, 2]])):
            out = torch.full((5, 3 * OUTPUTS), float("nan"))
            gemm(x, weights, out, chunk, tile, workspace, True)
            differ[f"{name}{chunk}"] = int((out.view(torch.int32) != wanted.view(torch.int32)).sum())
    return differ


def few_differences(workspace: Workspace) -> dict[str, int]:
    """Few rows with weights asked for ahead against tiles of ``gemm``: values whose bytes differ, by groups.

    ``control`` has the rows of one more.
    """
    generator, differ = torch.Generator().manual_seed(8), {}
    for groups, inputs in ((1, 40), (1, 320), (2, 128)):
        w = torch.randn(groups, OUTPUTS, inputs, generator=generator).to(torch.bfloat16)
        x = torch.randn(18, groups * inputs, generator=generator)
        given = w if groups > 1 else w[0]
        wanted = torch.empty(18, groups * OUTPUTS)
        gemm(x, given, wanted, 384 if groups == 1 else 128, Tile(64, 64, 128, 2, 4), workspace, True)
        for name, low, high, first in (("", 0, 18, 0), ("", 3, 4, 3), ("control ", 4, 5, 3)):
            for tile in (FewTile(16, 1024, 4), FewTile(32, 64, 4)):
                out = torch.full((high - low, groups * OUTPUTS), float("nan"))
                gemm_few(x[low:high], given, out, tile, True)
                unlike = out.view(torch.int32) != wanted[first : first + len(out)].view(torch.int32)
                key = f"{name}{groups} x {inputs}"
                differ[key] = differ.get(key, 0) + int(unlike.sum())
    return differ


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
    given = torch.randn(ROWS, DEPTH, generator=generator)  # numbers that bfloat16 does not hold
    outs = [torch.empty(ROWS, OUTPUTS) for _ in range(2)]
    for part, out in zip((given, given.to(torch.bfloat16)), outs, strict=True):
        gemm(part, w, out, 128, TILES[2], workspace)
    exact = x.double() @ w.double().T
    print(
        json.dumps(
            {
                "wrong": wrong,
                "fp8": fp8_differences(workspace),
                "groups": group_differences(workspace),
                "few": few_differences(workspace),
                "rounded_on_the_way": int((outs[0] != outs[1]).sum()),
                "counters_left": int(workspace.counters.abs().sum()),
                "error": float((whole.double() - exact).norm() / exact.norm()),
                "moved_by_another_chunk": int((rows(0, ROWS, 256, TILES[2]) != whole).sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
