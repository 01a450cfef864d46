"""The sequential part of drafting with one launch between two products; see ``draft_chains.markov_decode``.

Legend: A blocks of B rows, D model width, V vocabulary, R width of the Markov embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton.language as tl

from deepinfer.kernels.draft_chains import CONFIDENCE_CLAMP
from deepinfer.kernels.draft_operands import DraftHead, DraftOutput
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, kernel, launch, power_of_two
from deepinfer.kernels.gpu.pointwise import confidences
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
    EARLY: tl.constexpr = False,
) -> None:
    """Begin a block: its golden token and what that adds to the first row; its states before their terms."""
    if EARLY:
        after_launches_before()
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
    EARLY: tl.constexpr = False,
) -> None:
    """Add a block's term, take the largest, the lowest of equals, and read what it adds to the next row."""
    if EARLY:
        after_launches_before()
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


@dataclass(frozen=True)
class _Begun:
    """Blocks behind their golden tokens.

    Attributes:
        tokens: int64 [A, 1 + B], the first one known.
        chosen: float32 [A, R], embedding of the token before the next one.
        rows: float32 [A, B, D + R], states beside embeddings of the tokens before them, the first one known.
        terms: float32 [A, V], what is added to the logits of the first rows.
    """

    tokens: torch.Tensor
    chosen: torch.Tensor
    rows: torch.Tensor
    terms: torch.Tensor


def _begin(
    ops: Ops, golden: torch.Tensor, states: torch.Tensor, embed: torch.Tensor, head: PackedWeight
) -> _Begun:
    (count, size, depth), width, place = states.shape, embed.shape[1], golden.device
    tokens = torch.empty(count, 1 + size, dtype=torch.int64, device=place)
    chosen = torch.empty(count, width, device=place)
    rows = torch.empty(count, size, depth + width, device=place)
    launch(
        _start_kernel,
        (count,),
        *(golden.contiguous(), states.contiguous(), embed, tokens, chosen, rows, depth, size * depth),
        SIZE=size,
        WIDTH=width,
        LANES=power_of_two(width),
        TILE=min(_TILE, power_of_two(depth)),
    )
    return _Begun(tokens, chosen, rows, ops.linear_fp32(chosen, head))


def _scores(ops: Ops, rows: torch.Tensor, confidence: PackedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """[A, B, D + R] -> confidences [A, B] before the sigmoid, and behind it."""
    found = ops.linear_fp32(rows.flatten(0, 1), confidence).view(rows.shape[:2])
    return confidences(found, CONFIDENCE_CLAMP)


def _finish(
    ops: Ops,
    begun: _Begun,
    base_logits: torch.Tensor,
    embed: torch.Tensor,
    head: PackedWeight,
    confidence: PackedWeight,
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """See ``Ops.markov_decode``; confidences, also behind the sigmoid, are made beside the last token."""
    count, size, width = base_logits.shape[0], base_logits.shape[1], embed.shape[1]
    tokens, rows, terms = begun.tokens, begun.rows, begun.terms
    depth = rows.shape[2] - width
    base, logits = base_logits.contiguous(), torch.empty_like(base_logits)
    scored = None
    for i in range(size):
        if i + 1 == size:
            scored = ops.beside(partial(_scores, ops, rows, confidence), count)
        if i:
            terms = ops.linear_fp32(begun.chosen, head)
        launch(
            _pick_kernel,
            (count,),
            *(base[:, i:], terms, embed, logits[:, i:], tokens[:, i + 1 :], begun.chosen),
            *(rows[:, min(i + 1, size - 1), depth:], base.shape[2], tokens.stride(0), rows.stride(0)),
            num_warps=8,
            SIZE=size,
            WIDTH=width,
            LANES=power_of_two(width),
            TILE=min(_TILE, power_of_two(base.shape[2])),
            IS_LAST=i + 1 == size,
        )
    assert scored is not None
    return tokens, logits, scored()


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
    begun = _begin(ops, golden, states, embed, head)
    tokens, logits, (scores, _) = _finish(ops, begun, base_logits, embed, head, confidence)
    return tokens, logits, scores


def draft_decode(
    ops: Ops, streams: torch.Tensor, pre: torch.Tensor, golden: torch.Tensor, head: DraftHead
) -> DraftOutput:
    """See ``Ops.draft_decode``; what the golden tokens add is worked out beside the logits."""
    hidden, normed = ops.collapsed_norm(streams, pre, head.gain, head.eps)
    states = hidden.view(len(golden), -1, hidden.shape[1])
    begin = partial(_begin, ops, golden, states, head.embed, head.markov)
    begun = ops.beside(begin, len(hidden))
    base = ops.linear_fp32(normed, head.head).view(*states.shape[:2], -1)
    tokens, logits, sure = _finish(ops, begun(), base, head.embed, head.markov, head.confidence)
    return DraftOutput(hidden, base, tokens, logits, *sure)
