"""Compile sums that share a launch with other work for a Hopper chip, beside the launches they stand for.

Prints by kernel the layouts of all reductions to a number, which fix the order that lanes add in, as JSON.
"""

from __future__ import annotations

import json
import re

import torch
from compile_only import compile_only

FOUND: dict[str, list[str]] = {}


def reductions(name: str, text: str) -> None:
    """Note the types of what is summed, with layouts written out."""
    known = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    for kind in re.findall(r"\}\) : \(tensor<([^>]*)>\) -> f32", text):
        FOUND.setdefault(name, []).append(re.sub(r"#\w+", lambda one: known[one[0]], kind))


def main() -> None:
    """Widths of the bundled model and of the release."""
    compile_only(layouts=reductions)
    from deepinfer.kernels.gpu import latents, row_sums, site_rows, site_turns
    from deepinfer.kernels.operands import Rotary, SiteInput

    table, positions = torch.empty(4096, 16), torch.zeros(4, dtype=torch.int64)
    for width in (64, 512):
        x, gain = torch.empty(4, width), torch.empty(width)
        row_sums.rms_norm(x, gain, 1e-6, True)
        latents.latent(x, gain, 1e-6, Rotary(table, table, positions), True)
    for width in (256, 512, 5120):
        x, gain = torch.empty(4, width), torch.empty(width)
        row_sums.rms_norm(x, gain, 1e-6, True)
        streams, mix = torch.empty(4, 4, width), torch.empty(4, 4)
        site_rows.site_row(streams, mix, gain, 1e-6, True)
        site_rows.collapsed_norm(streams, mix, gain, 1e-6, True)
        site = SiteInput(x, lambda: (mix, mix, torch.empty(4, 4, 4)))  # noqa: B023
        if site_turns.fits(width):
            site_turns.turned(streams, x, site, gain, 1e-6)
            pairs = site_turns.Pairs(torch.empty(8, width, dtype=torch.bfloat16), x, 2)
            site_turns.turned(streams, pairs, site, gain, 1e-6)
    for width in (1024, 16384):
        row_sums.square_sums(torch.empty(4, width))
        row_sums.site_sums(torch.empty(4, width), torch.empty(4, 72))
    print(json.dumps(FOUND))


if __name__ == "__main__":
    main()
