"""Random words from a counter on the device: Philox4x32-10, the words of ``kernels/rng.py``.

Integer work alone: products of 32-bit words wrap in int64 and are masked, so every bit is the host's.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch, power_of_two
from deepinfer.kernels.rng import NUM_PURPOSES, SAMPLE


@kernel
def _words_kernel(
    seeds: Ptr,
    positions: Ptr,
    samples: Ptr,
    words: Ptr,
    num_words: int,
    PURPOSES: tl.constexpr,
    PURPOSE: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    stream = tl.load(positions + row) * PURPOSES + PURPOSE
    seed = tl.load(seeds + row)
    x = tl.arange(0, BLOCKS).to(tl.int64)
    y, z = x * 0 + tl.load(samples + row), x * 0 + (stream & 0xFFFFFFFF)
    w = x * 0 + ((stream >> 32) & 0xFFFFFFFF)
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in tl.static_range(10):
        p, q = x * 0xD2511F53, z * 0xCD9E8D57
        x = ((q >> 32) & 0xFFFFFFFF) ^ y ^ k0
        z = ((p >> 32) & 0xFFFFFFFF) ^ w ^ k1
        y, w = q & 0xFFFFFFFF, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    first = tl.arange(0, BLOCKS) * 4
    line = words + row * num_words + first
    tl.store(line, x, first < num_words)
    tl.store(line + 1, y, first + 1 < num_words)
    tl.store(line + 2, z, first + 2 < num_words)
    tl.store(line + 3, w, first + 3 < num_words)


def random_words(
    seeds: torch.Tensor, positions: torch.Tensor, sample_indices: torch.Tensor, num_words: int
) -> torch.Tensor:
    """See ``Ops.random_words``."""
    words = torch.empty(len(seeds), num_words, dtype=torch.int64, device=seeds.device)
    arguments = (seeds.contiguous(), positions.contiguous(), sample_indices.contiguous(), words, num_words)
    sizes = {"PURPOSES": NUM_PURPOSES, "PURPOSE": SAMPLE, "BLOCKS": power_of_two(ceil_div(num_words, 4))}
    launch(_words_kernel, (len(seeds),), *arguments, num_warps=1, **sizes)
    return words
