"""The fast device ops in the exact interpreter, against float64; prints errors and unequal rows as JSON."""

from __future__ import annotations

import json
import sys

import torch
from exact_interpreter import make_exact
from torch.nn.functional import pad

make_exact()

import fast_references as reference  # noqa: E402
from interpreted_native import native  # noqa: E402

from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.gpu.expert_gemm import ExpertTile, inner_products, outer_products  # noqa: E402
from deepinfer.kernels.gpu.expert_groups import plan_tiles  # noqa: E402
from deepinfer.kernels.gpu.index_scan import ABSENT, ScanTile, scan  # noqa: E402
from deepinfer.kernels.gpu.mxfp4_weights import pack_codes  # noqa: E402
from deepinfer.kernels.gpu.packed_attention import attend  # noqa: E402
from deepinfer.kernels.gpu.pool_index import Keys  # noqa: E402
from deepinfer.kernels.gpu.record_ops import _ReleasedKeys  # noqa: E402
from deepinfer.kernels.gpu.records import BoundRecords, bind_records  # noqa: E402
from deepinfer.kernels.gpu.row_sources import packed  # noqa: E402
from deepinfer.kernels.gpu.select16 import PoolGroups, select_entries, select_within  # noqa: E402
from deepinfer.kernels.gpu.two_level import Limits, index_select  # noqa: E402
from deepinfer.kernels.operands import PagedRecords  # noqa: E402

GENERATOR = torch.Generator().manual_seed(11)


CPU = select_ops("cpu", bf16=False, num_threads=1)


def filled(
    kind: str, width: int, data: torch.Tensor, scales: torch.Tensor, values: torch.Tensor
) -> tuple[BoundRecords, torch.Tensor]:
    """Records of ``values`` [n, width], written by the CPU kernels, and what they decode to."""
    where, rows = CPU.bind_records(kind, width, data, scales), torch.arange(len(values))
    CPU.store_records(where, values, rows)
    return bind_records(kind, width, data, scales), CPU.load_records(where, rows)


def normal(*shape: int) -> torch.Tensor:
    """Normal float32."""
    return torch.randn(shape, generator=GENERATOR)


def experts() -> dict[str, float]:
    """Six experts with a width of two steps and an inner width that needs padding."""
    width, inner, rows = 128, 96, 7
    words, plain = [], []
    for shape in ((6, inner, width), (6, inner, width), (6, width, inner)):
        codes, scales = reference.random_mxfp4(GENERATOR, *shape)
        words.append(pack_codes(codes, scales))
        plain.append(reference.decode_mxfp4(codes, scales))
    x = normal(rows, width).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(6, generator=GENERATOR)[:2].sort().values for _ in range(rows)])
    shares = normal(rows, 2).abs()
    wanted = reference.expert_outputs(x, ids, shares, *plain, 10.0)
    unequal, errors, first = 0, [], None
    for tile in (ExpertTile(64, 16, 64, 2, 4), ExpertTile(32, 32, 64, 2, 4)):
        tiles = plan_tiles(ids, 6, tile.pairs)
        h = inner_products(x, tiles, shares, words[0], words[1], 10.0, tile)
        y = outer_products(h, tiles, words[2], tile)
        first = y if first is None else first
        unequal += int((y != first).sum())
        errors += [reference.relative(h[:, :inner], wanted[0]), reference.relative(y, wanted[1])]
        alone = plan_tiles(ids[3:4], 6, tile.pairs)
        h = inner_products(x[3:4], alone, shares[3:4], words[0], words[1], 10.0, tile)
        unequal += int((outer_products(h, alone, words[2], tile) != first[6:8]).sum())
    return {"experts_error": max(errors), "experts_unequal": unequal}


def attention() -> dict[str, float]:
    """Rings of 70 records, blocks of 32 entries, some slots absent, one row that sees nothing."""
    rows, heads, width = 4, 20, 128
    window = torch.zeros(2, 70 * (width + width // 32), dtype=torch.uint8).view(2, 70, -1)
    near, latents = filled("mxfp8", width, window[..., :width], window[..., width:], normal(140, width))
    main = torch.zeros(8, 32 * (width // 2 + width // 16), dtype=torch.uint8).view(8, 32, -1)
    cut = width // 2
    far, entries = filled("fp4", width, main[..., :cut], main[..., cut:], normal(256, width))
    q, sink = normal(rows, heads, width).to(torch.bfloat16), normal(heads)
    near_slots = torch.arange(rows)[:, None] + torch.arange(72)[None]
    near_slots[1, :17] = -1
    far_slots = torch.randint(-1, 256, (rows, 140), generator=GENERATOR)
    near_slots[2], far_slots[2], far_slots[3, 60:] = -1, -1, -1
    near_slots, far_slots = near_slots.to(torch.int32), far_slots.to(torch.int32)
    wanted = reference.attention(q, latents, near_slots, entries, far_slots, sink)
    whole = attend(q, near, near_slots, far, far_slots, sink)
    other = attend(q[1:2], near, near_slots[1:2], far, far_slots[1:2], sink)
    return {
        "attention_error": reference.relative(whole, wanted),
        "attention_unequal": int((other != whole[1:2]).sum()),
        "attention_blind": float(whole[2].abs().max()),
    }


def expected_entries(keys: torch.Tensor, counts: torch.Tensor, top: int) -> torch.Tensor:
    """By a stable sort, int32 [T, top]."""
    chosen = []
    for row, visible in zip(keys, counts.tolist(), strict=True):
        order = torch.sort(row[:visible], descending=True, stable=True).indices
        order = order[row[order] > ABSENT][:top].sort().values.int()
        chosen.append(torch.cat((order, torch.full((top - len(order),), -1, dtype=torch.int32))))
    return torch.stack(chosen)


def index() -> dict[str, float]:
    """Scores on a table of blocks, the best of a row, candidate blocks and entries within them."""
    rows, heads, width, length = 3, 16, 128, 150
    buffer = torch.zeros(12, 16 * (width // 2 + width // 32), dtype=torch.uint8)
    cut = 16 * (width // 2)
    data, scales = buffer[:, :cut].view(12, 16, -1), buffer[:, cut:].view(12, 16, -1)
    pool, decoded = filled("mxfp4", width, data, scales, normal(192, width))
    table = torch.stack([torch.randperm(12, generator=GENERATOR) for _ in range(rows)]).to(torch.int32)
    scratch = torch.zeros(1, rows * heads, width // 2 + width // 32, dtype=torch.uint8)
    data, scales = scratch[..., : width // 2], scratch[..., width // 2 :]
    q = filled("mxfp4", width, data, scales, normal(rows * heads, width))[1]
    q = q.view(rows, heads, width).to(torch.bfloat16)
    w = normal(rows, heads).to(torch.bfloat16)
    counts = torch.tensor([150, 61, 0], dtype=torch.int32)
    keys, best = scan(q, w, pool, table, counts, length, 8, ScanTile(16, 2, 2, 4), best=True)
    places = torch.arange(length)
    own = decoded[(table[:, places // 16] * 16 + places % 16).long()]
    scores = reference.index_scores(q, w, own)
    seen = places[None] < counts[:, None]
    bits = scores.to(torch.bfloat16).view(torch.int16).int()
    wanted = torch.where(seen, bits ^ ((bits >> 15) & 0x7FFF), ABSENT)
    found = torch.where(seen, keys.int(), ABSENT)
    wrong = int((found != wanted).sum())
    _, alone = scan(q, w, pool, table, counts, length, 8, ScanTile(16, 2, 2, 4), keys=False, best=True)
    used = torch.arange(best.shape[1])[None] * 8 < counts[:, None]
    wrong += int(((alone != best) & used).sum())
    chosen = expected_entries(wanted, counts, 12)
    wrong_choice = int((select_entries(keys, best, counts, 12, 8) != chosen).sum())
    tops = torch.where(torch.arange(length + 2)[None] < counts[:, None], pad(wanted, (0, 2)), ABSENT)
    tops = tops.view(rows, -1, 8).amax(2)
    tops.scatter_(1, (counts[:, None].long() - 1).clamp(min=0) // 8, 40000)
    blocks = expected_entries(tops, (counts + 7) // 8, 4)
    # a row in parts of eight blocks, over both kinds of tables
    levels = Limits(entries=0, blocks=16)
    pages, few = PagedRecords(pool, table, 16), expected_entries(wanted, counts, 3)
    for source in (_ReleasedKeys(pages), Keys(packed(pool), table)):
        found_entries, found_blocks = index_select(q, w, source, counts, length, 3, 4, 8, levels)
        wrong_choice += int((found_entries != few).sum()) + int((found_blocks != blocks).sum())
    within, largest = scan(q, w, pool, table, counts, 32, 8, ScanTile(16, 1, 2, 4), blocks=blocks, best=True)
    entries = (blocks[:, :, None] * 8 + torch.arange(8)).flatten(1)
    usable = (blocks.repeat_interleave(8, 1) >= 0) & (entries < counts[:, None])
    expected = torch.where(usable, wanted.gather(1, entries.clamp(0, length - 1).long()), ABSENT)
    wrong += int((within.int() != expected).sum())
    inside = torch.zeros(rows, length + 1, dtype=torch.int32).fill_(ABSENT)
    inside = inside.scatter(1, torch.where(usable, entries, length).long(), expected)[:, :length]
    asked = expected_entries(inside, counts, 3)
    at, place = asked.clamp(min=0).long() // 16, asked % 16
    records, elsewhere = (
        torch.where(asked < 0, -1, one.gather(1, at) * 16 + place) for one in (table, table.roll(1, 1))
    )
    for tops_or_none in (largest, None):
        groups = PoolGroups(table, 16)
        picked = select_within(within, counts, 3, blocks, 8, warps=4, groups=groups, best=tops_or_none)
        wrong_choice += int((picked != records).sum()) + int((picked == elsewhere)[:2].all())
    return {"index_keys_wrong": wrong, "index_choices_wrong": wrong_choice}


def main() -> None:
    """The parts that are asked for."""
    parts = {"experts": experts, "attention": attention, "index": index, "native": native}
    found: dict[str, float] = {}
    for name in sys.argv[1:] or parts:
        found |= parts[name]()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
