"""The reference's selection and attention against their definitions, one row at a time."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.reference import indexer, tiles

REFERENCE = select_ops("reference", bf16=False, num_threads=1)
NO_ENTRY = -1


def top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the largest, ties to the lowest, ascending."""
    return scores.sort(descending=True, stable=True).indices[:count].sort().values


def padded(found: torch.Tensor, size: int) -> list[int]:
    return found.tolist() + [NO_ENTRY] * (size - len(found))


def scores_of(q: torch.Tensor, w: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return ((keys @ q.T).relu() * w).sum(-1)


def small(*shape: int, seed: int) -> torch.Tensor:
    """Small integers: every score is exact, so ties are ties in any order of summation."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("num_sequences", [1, 3, 40])
@pytest.mark.parametrize("tile_floats", [600, tiles.TILE_FLOATS])
def test_selection(monkeypatch: pytest.MonkeyPatch, num_sequences: int, tile_floats: int) -> None:
    monkeypatch.setattr(tiles, "TILE_FLOATS", tile_floats)
    rows, top_entries, num_blocks, block_size = 40, 9, 4, 8
    q, w, keys = small(rows, 4, 8, seed=1), small(rows, 4, seed=2), small(40 * 60, 8, seed=3)
    sequence = torch.arange(rows) * num_sequences // rows
    base, counts = sequence * 60, torch.arange(rows) % 57
    entries, blocks = REFERENCE.index_select(
        q, w, keys, base, counts, 57, top_entries, num_blocks, block_size
    )
    within = REFERENCE.index_select_within(q, w, keys, base, counts, blocks, block_size, 5)
    for row in range(rows):
        start, count = int(base[row]), int(counts[row])
        scores = scores_of(q[row], w[row], keys[start : start + count])
        assert entries[row].tolist() == padded(top(scores, top_entries), top_entries)
        parts = [part.max() for part in scores.split(block_size)] if count else []
        best = torch.tensor([*parts[:-1], torch.inf] if parts else [])
        kept = top(best, num_blocks)
        assert blocks[row].tolist() == padded(kept, num_blocks)
        usable = torch.cat([torch.arange(b * 8, min(b * 8 + 8, count)) for b in kept.tolist()] or [kept])
        chosen = usable[top(scores[usable], 5)]
        assert within[row].tolist() == padded(chosen, 5)


def test_rows_of_few_sequences_share_keys_and_rows_of_many_do_not() -> None:
    few = torch.arange(4).repeat_interleave(32)
    assert [shared for _, shared in indexer._tiles(few, 1, 1)] == [True] * 4
    assert [shared for _, shared in indexer._tiles(torch.arange(128), 1, 1)] == [False]


@pytest.mark.parametrize("tile_floats", [1, tiles.TILE_FLOATS])
def test_attention(monkeypatch: pytest.MonkeyPatch, tile_floats: int) -> None:
    monkeypatch.setattr(tiles, "TILE_FLOATS", tile_floats)
    generator = torch.Generator().manual_seed(4)
    q, window, main, sink = (
        torch.randn(*shape, generator=generator) for shape in ((7, 3, 16), (20, 16), (9, 16), (3,))
    )
    near = torch.randint(-1, 20, (7, 6), generator=generator)
    far = torch.randint(-1, 9, (7, 4), generator=generator)
    near[2], far[2] = -1, -1
    got = REFERENCE.sparse_attention(q, window, near, main, far, sink)
    assert not got[2].any()
    for row in (0, 1, 3, 4, 5, 6):
        keys = torch.cat([window[near[row][near[row] >= 0]], main[far[row][far[row] >= 0]]]).double()
        weights = (q[row].double() @ keys.T / 4).exp()
        want = weights @ keys / (weights.sum(1) + sink.double().exp())[:, None]
        assert (got[row] - want).abs().max() < 2e-6


def test_a_hidden_row_that_is_not_finite_reaches_nobody() -> None:
    window = torch.ones(3, 16)
    window[0] = torch.nan
    slots = torch.tensor([[-1, 1, 2]])
    out = REFERENCE.sparse_attention(
        torch.ones(1, 2, 16), window, slots, window, slots[:, :0], torch.zeros(2)
    )
    assert out.isfinite().all()
