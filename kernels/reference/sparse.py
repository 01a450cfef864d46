"""Index scores, selection and sparse attention in plain torch (model.md sections 3.6 and 4)."""

from __future__ import annotations

import torch


def _bf16(x: torch.Tensor, enabled: bool) -> torch.Tensor:
    return x.to(torch.bfloat16).to(torch.float32) if enabled else x


def _scores(q: torch.Tensor, w: torch.Tensor, keys: torch.Tensor, bf16: bool) -> torch.Tensor:
    """[Hi, Ci], [Hi], [n, Ci] -> [n]: ``sum over h of relu(q_h . k_j) * w_h``."""
    dots = _bf16(keys @ q.T, bf16).relu()
    return _bf16(_bf16(dots * w, bf16).sum(-1), bf16)


def _top(scores: torch.Tensor, top: int) -> torch.Tensor:
    """Indices of the largest, ties to the lowest index, ascending."""
    return scores.sort(descending=True, stable=True).indices[:top].sort().values


def _candidates(scores: torch.Tensor, num_blocks: int, block_size: int) -> torch.Tensor:
    """Blocks with the largest maximum; the newest block is always one of them."""
    padding = -len(scores) % block_size
    padded = torch.nn.functional.pad(scores, (0, padding), value=float("-inf"))
    best = padded.view(-1, block_size).amax(-1)
    if len(best):
        best[-1] = float("inf")
    return _top(best, num_blocks)


def index_select(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    num_blocks: int,
    block_size: int,
    bf16: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.index_select``."""
    entries = torch.full((q.shape[0], top), -1, dtype=torch.int32)
    blocks = torch.full((q.shape[0], num_blocks), -1, dtype=torch.int32)
    for row, (start, count) in enumerate(zip(base.tolist(), counts.tolist(), strict=True)):
        scores = _scores(q[row], w[row], keys[start : start + count], bf16)
        chosen = _top(scores, top)
        entries[row, : len(chosen)] = chosen
        if num_blocks:
            kept = _candidates(scores, num_blocks, block_size)
            blocks[row, : len(kept)] = kept
    return entries, blocks


def index_select_within(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
    bf16: bool,
) -> torch.Tensor:
    """See ``Ops.index_select_within``."""
    entries = torch.full((q.shape[0], top), -1, dtype=torch.int32)
    for row, (start, count) in enumerate(zip(base.tolist(), counts.tolist(), strict=True)):
        allowed = blocks[row][blocks[row] >= 0].long()
        usable = (allowed[:, None] * block_size + torch.arange(block_size)).flatten()
        usable = usable[usable < count]
        chosen = usable[_top(_scores(q[row], w[row], keys[start + usable], bf16), top)]
        entries[row, : len(chosen)] = chosen
    return entries


def _rows(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[P, C], [T, n] -> [T, n, C]; an absent slot gives any row, zeros if there is none."""
    return pool[slots.clamp(min=0)] if len(pool) else torch.zeros(*slots.shape, pool.shape[1])


def attention(
    q: torch.Tensor,
    window: torch.Tensor,
    window_slots: torch.Tensor,
    main: torch.Tensor,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
    bf16: bool,
) -> torch.Tensor:
    """See ``Ops.sparse_attention``; ``bf16`` rounds the probabilities before the product with the values."""
    slots = torch.cat([window_slots, main_slots], 1)
    latents = torch.cat([_rows(window, window_slots), _rows(main, main_slots)], 1)
    z = torch.einsum("thc,tsc->ths", q, latents) * q.shape[-1] ** -0.5
    z = z.masked_fill((slots < 0)[:, None], float("-inf"))
    largest = z.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    p = torch.exp(z - largest)
    den = p.sum(-1) + torch.exp(sink - largest[..., 0])
    out = torch.einsum("ths,tsc->thc", _bf16(p, bf16), latents) / den[..., None]
    return torch.where((slots >= 0).any(1)[:, None, None], out, 0.0)
