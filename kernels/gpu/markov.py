"""The sequential part of drafting with one launch between two products; see ``draft_chains.markov_decode``.

Legend: A blocks of B rows, D model width, V vocabulary, R width of the Markov embedding.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.draft_chains import CONFIDENCE_CLAMP
from deepinfer.kernels.gpu.launching import Ptr, kernel, launch, power_of_two
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import PackedWeight

_TILE = 4096


@kernel
def _start_kernel(
    golden: Ptr,
    states: Ptr,
    embed: Ptr,
    tokens: Ptr,
    chosen: Ptr,
    rows: Ptr,
    width: int,
    state_stride: int,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Begin a block: its golden token and what that adds to the first row; its states before their terms."""
    block = tl.program_id(0).to(tl.int64)
    token = tl.load(golden + block)
    tl.store(tokens + block * (SIZE + 1), token)
    lane = tl.arange(0, LANES)
    found = tl.load(embed + token * WIDTH + lane, lane < WIDTH, other=0.0)
    tl.store(chosen + block * WIDTH + lane, found, lane < WIDTH)
    line = rows + block * SIZE * (width + WIDTH)
    tl.store(line + width + lane, found, lane < WIDTH)
    for i in tl.static_range(SIZE):
        for first in range(0, width, TILE):
            d = first + tl.arange(0, TILE)
            state = tl.load(states + block * state_stride + i * width + d, d < width, other=0.0)
            tl.store(line + i * (width + WIDTH) + d, state, d < width)


@kernel
def _pick_kernel(
    base: Ptr,
    terms: Ptr,
    embed: Ptr,
    logits: Ptr,
    tokens: Ptr,
    chosen: Ptr,
    rows: Ptr,
    num_outputs: int,
    token_stride: int,
    row_stride: int,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
    IS_LAST: tl.constexpr,
) -> None:
    """Add a block's term, take the largest, the lowest of equals, and read what it adds to the next row."""
    block = tl.program_id(0).to(tl.int64)
    best = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), 0, tl.int64)
    for first in range(0, num_outputs, TILE):
        v = first + tl.arange(0, TILE)
        inside = v < num_outputs
        row = block * SIZE * num_outputs + v
        value = tl.load(base + row, inside, other=0.0)
        value += tl.load(terms + block * num_outputs + v, inside, other=0.0)
        tl.store(logits + row, value, inside)
        value = tl.where(inside, value, float("-inf"))
        largest = tl.max(value, axis=0)
        lowest = tl.min(tl.where(value == largest, v, num_outputs), axis=0).to(tl.int64)
        token = tl.where(largest > best, lowest, token)
        best = tl.maximum(largest, best)
    tl.store(tokens + block * token_stride, token)
    lane = tl.arange(0, LANES)
    found = tl.load(embed + token * WIDTH + lane, lane < WIDTH, other=0.0)
    if not IS_LAST:
        tl.store(chosen + block * WIDTH + lane, found, lane < WIDTH)
        tl.store(rows + block * row_stride + lane, found, lane < WIDTH)


def markov_decode(
    ops: Ops,
    golden: torch.Tensor,
    states: torch.Tensor,
    base_logits: torch.Tensor,
    embed: torch.Tensor,
    head: PackedWeight,
    confidence: PackedWeight,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``Ops.markov_decode``."""
    count, size, width = base_logits.shape[0], base_logits.shape[1], embed.shape[1]
    depth, place = states.shape[2], golden.device
    base, logits = base_logits.contiguous(), torch.empty_like(base_logits)
    tokens = torch.empty(count, 1 + size, dtype=torch.int64, device=place)
    chosen = torch.empty(count, width, device=place)
    rows = torch.empty(count, size, depth + width, device=place)
    sizes = {"SIZE": size, "WIDTH": width, "LANES": power_of_two(width)}
    launch(
        _start_kernel,
        (count,),
        *(golden.contiguous(), states.contiguous(), embed, tokens, chosen, rows, depth, size * depth),
        TILE=min(_TILE, power_of_two(depth)),
        **sizes,
    )
    for i in range(size):
        terms = ops.linear_fp32(chosen, head)
        launch(
            _pick_kernel,
            (count,),
            *(base[:, i:], terms, embed, logits[:, i:], tokens[:, i + 1 :], chosen),
            *(rows[:, min(i + 1, size - 1), depth:], base.shape[2], tokens.stride(0), rows.stride(0)),
            num_warps=8,
            TILE=min(_TILE, power_of_two(base.shape[2])),
            IS_LAST=i + 1 == size,
            **sizes,
        )
    scores = ops.linear_fp32(rows.flatten(0, 1), confidence).view(count, size)
    return tokens, logits, scores.clamp(-CONFIDENCE_CLAMP, CONFIDENCE_CLAMP)
