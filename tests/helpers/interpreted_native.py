"""Experts of chips that multiply FP4 as it is, in the exact interpreter; ``interpreted_fast`` prints them."""

from __future__ import annotations

import fast_references as reference
import torch

from deepinfer.kernels.gpu.expert_gemm import ExpertTile
from deepinfer.kernels.gpu.expert_groups import plan_tiles
from deepinfer.kernels.gpu.native_experts import NativeExperts, products, routed
from deepinfer.kernels.gpu.native_weights import pack_native, split_rows, stacked

EXPERTS, WIDTH, INNER, ROWS = 5, 160, 96, 7


def native() -> dict[str, float]:
    """Error against float64, rows that change with tile or company, and how far off one part alone is."""
    generator = torch.Generator().manual_seed(12)
    shapes = (EXPERTS, INNER, WIDTH), (EXPERTS, INNER, WIDTH), (EXPERTS, WIDTH, INNER)
    codes = [reference.random_mxfp4(generator, *shape) for shape in shapes]
    gate, up, down = (pack_native(*one) for one in codes)
    packed = NativeExperts(stacked(gate, up), down)
    x = torch.randn(ROWS, WIDTH, generator=generator).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2].sort().values for _ in range(ROWS)])
    shares = torch.randn(ROWS, 2, generator=generator).abs()
    plain = [reference.decode_mxfp4(*one) for one in codes]
    wanted = reference.expert_outputs(x, ids, shares, *plain, 10.0)[1]
    found = routed(x, ids, shares, packed, 10.0)
    other = routed(x, ids, shares, packed, 10.0, ExpertTile(64, 32, 64, 2, 4))
    alone = routed(x[3:4], ids[3:4], shares[3:4], packed, 10.0)
    tiles, rows = plan_tiles(ids, EXPERTS, 16), split_rows(x)
    whole = products(rows, tiles, packed.inner, 2)
    rows.codes[1].zero_()  # what is left is a row in MXFP8
    return {
        "native_error": reference.relative(found, wanted),
        "native_unequal": int((found != other).sum() + (alone != found[6:8]).sum()),
        "control_native": reference.relative(products(rows, tiles, packed.inner, 2), whole),
        **_parts(generator),
    }


def _parts(generator: torch.Generator) -> dict[str, int]:
    """Values that two parts should hold and do not, and broken groups that are not NaN as a whole."""
    spread = torch.randint(-9, 9, (4, WIDTH), generator=generator)
    x = (torch.randn(4, WIDTH, generator=generator) * torch.exp2(spread)).to(torch.bfloat16)
    x[1] *= 2.0**-110
    x[2, :32], x[3, 40], x[3, 70] = 0, float("inf"), float("nan")
    rows = split_rows(x)
    powers = torch.exp2(rows.scales.double() - 127).repeat_interleave(32, -1)
    held = (rows.codes.view(torch.float8_e4m3fn).double() * powers).sum(0)
    groups = x.double().view(4, -1, 32)
    large = (groups.abs() >= groups.abs().amax(-1, keepdim=True) * 2.0**-13).view(4, WIDTH)
    large[3, 32:96] = False
    nan = rows.scales[:, 3] == 255
    return {
        "native_lost": int((held[:, :WIDTH] != x.double())[large].sum() + (held[:, WIDTH:] != 0).sum()),
        "native_hidden": int((nan != torch.tensor([False, True, True] + [False] * 5)).sum()),
    }
