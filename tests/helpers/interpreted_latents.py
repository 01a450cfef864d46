"""Latents, sums before mixes and inputs of sublayers in one launch against their parts; prints JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
from exact_interpreter import make_exact

make_exact()

from deepinfer.kernels import chains  # noqa: E402
from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.gpu import fast_linear, latents, rope, row_sums, site_rows, site_turns  # noqa: E402
from deepinfer.kernels.gpu.expert_gemm import combine  # noqa: E402
from deepinfer.kernels.operands import Rotary, SiteInput  # noqa: E402


def main() -> None:
    """Widths with and without padding of the tile, few and all channels rotated, one row and more."""
    ops, draw = select_ops("triton", bf16=True), torch.Generator().manual_seed(5)
    wrong, control = [], False
    for num_rows, width, num_pairs in ((1, 32, 4), (3, 64, 32), (2, 96, 16)):
        x = torch.randn(num_rows, 48, generator=draw)
        weight = ops.pack_linear(torch.randn(width, 48, generator=draw) * 0.2)
        gain = torch.randn(width, generator=draw)
        angles = torch.randn(2, 40, num_pairs, generator=draw)
        rotary = Rotary(angles[0].cos(), angles[0].sin(), torch.arange(num_rows) * 7 + 3)
        other = Rotary(rotary.cos, rotary.sin, rotary.positions + 1)
        for name in ("rotated_latent", "window_latent"):
            found = getattr(ops, name)(x, weight, gain, 1e-6, rotary)
            parts = chains.rotated_latent(_Sequence(ops), x, weight, gain, 1e-6, rotary)
            wanted = ops.mxfp8_(parts) if name == "window_latent" else parts
            if not torch.equal(found.view(torch.int32), wanted.view(torch.int32)):
                wrong.append([name, num_rows, width, num_pairs])
            control |= not torch.equal(getattr(ops, name)(x, weight, gain, 1e-6, other), wanted)
    for num_rows, width in ((1, 96), (3, 160)):
        x, weight = torch.randn(num_rows, width, generator=draw), torch.randn(24, width, generator=draw)
        packed = ops.pack_linear(weight)
        assert packed.num_parts == 3
        parts = fast_linear.part_products(x, packed, ops._workspace)
        found = row_sums.site_sums(x, parts)
        for one, other in zip(found, (ops.linear_fp32(x, packed), row_sums.square_sums(x)), strict=True):
            if not torch.equal(one.view(torch.int32), other.view(torch.int32)):
                wrong.append(["site_sums", num_rows, width])
        heads = torch.randn(num_rows, 11, width, generator=draw)
        tables = torch.randn(2, 40, width // 8, generator=draw)
        turn = tables[0], tables[1], torch.arange(num_rows) + 5, True, True
        found, kept = rope.rotated(heads, *turn), heads.clone()
        if not torch.equal(found.view(torch.int32), rope.rotate_(kept, *turn).view(torch.int32)):
            wrong.append(["rotated", num_rows, width])
        control &= not torch.equal(found, heads)
        streams, pre = (
            torch.randn(num_rows, 4, width, generator=draw),
            torch.randn(num_rows, 4, generator=draw),
        )
        gain = torch.randn(width, generator=draw)
        found = site_rows.site_row(streams, pre, gain, 1e-6, True)
        wanted = ops.rms_norm(ops.hc_collapse(streams, pre), gain, 1e-6)
        if not torch.equal(found.view(torch.int32), wanted.view(torch.int32)):
            wrong.append(["site_row", num_rows, width])
        control &= not torch.equal(site_rows.site_row(streams, pre, gain, 1e-6, False), wanted)
        control &= turns_differ(ops, draw, streams, gain, wrong)
    refused = not latents.fits(48) and not latents.fits(8192) and latents.fits(4096)
    print(json.dumps({"wrong": wrong, "control": control and refused}))


def turns_differ(
    ops: Any, draw: torch.Generator, streams: torch.Tensor, gain: torch.Tensor, wrong: list[list[Any]]
) -> bool:
    """Adds to ``wrong`` what a turn between sublayers has unlike its parts; whether other mixes are seen."""
    (num_rows, size, width), is_seen = streams.shape, True
    mixes = [torch.randn(num_rows, *rest, generator=draw) for rest in ((size,), (size,), (size, size))]
    other = SiteInput(gain, lambda: (mixes[0], mixes[1], mixes[2].mT.contiguous()))
    site = SiteInput(gain, lambda: (mixes[0], mixes[1], mixes[2]))
    routed = torch.randn(3 * num_rows, width, generator=draw).to(torch.bfloat16)
    shared = ops.rms_norm(streams[:, 0], gain, 1e-6)
    combined = combine(routed, shared, 3, torch.float32)
    for added, parts in ((shared, shared), (combined, site_turns.Pairs(routed, shared, 3))):
        expanded = ops.hc_expand(streams, added, site.post, site.comb)
        wanted = expanded, ops.rms_norm(ops.hc_collapse(expanded, site.pre), gain, 1e-6)
        found = site_turns.turned(streams, parts, site, gain, 1e-6)
        alone = site_turns.expanded(streams, parts, site)
        kept = site_rows.collapsed_norm(expanded, site.pre, gain, 1e-6, True)
        same = (*zip(found, wanted, strict=True), (alone, expanded), (kept[1], wanted[1]))
        if not all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in same):
            wrong.append(["turned", num_rows, width])
        is_seen &= not torch.equal(site_turns.turned(streams, parts, other, gain, 1e-6)[0], expanded)
    return is_seen


class _Sequence:
    """The ops of a kernel set, and none of its chains."""

    def __init__(self, ops: object) -> None:
        self.linear, self.rms_norm, self.rotate_ = ops.linear, ops.rms_norm, ops.rotate_  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
