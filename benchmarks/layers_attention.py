"""Section of ``gpu_layers.py``: attention with index selection on packed caches at the released shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import fast_references as reference
import torch
from layers_common import DEVICE, Report, against, timed

from deepinfer.kernels.gpu.index_scan import ABSENT, ScanTile, scan
from deepinfer.kernels.gpu.packed_attention import AttentionTile, attend
from deepinfer.kernels.gpu.records import BoundRecords, bind_records, load_records
from deepinfer.kernels.gpu.select16 import select_within
from deepinfer.kernels.gpu.select_blocks import best_blocks

HEADS, WIDTH, WINDOW, TOP = 64, 512, 128, 512
INDEX_HEADS, INDEX_WIDTH, BLOCK, BLOCKS = 32, 128, 8, 2048
RING, PAGE, CONTEXT = 134, 128, 131072
ATTEND = (AttentionTile(), AttentionTile(8, 2))
SCAN = (ScanTile(128, 16, 3, 4), ScanTile(128, 64, 3, 4))
WITHIN = (ScanTile(128, 8, 3, 4), ScanTile(128, 16, 3, 4))
WARPS = (16,)


class Caches:
    """Packed caches of a number of sequences; ``fill`` draws bytes that decode to reasonable numbers."""

    def __init__(self, sequences: int, context: int, place: str, fill: bool, ring: int = RING) -> None:
        """Allocate pools and tables."""
        self.sequences, self.context, self.place = sequences, context, place
        pages = sequences * context // PAGE
        window = self._bytes(sequences, ring * (WIDTH + WIDTH // 32), fill).view(sequences, ring, -1)
        main = self._bytes(pages, PAGE * (WIDTH // 2 + WIDTH // 16), fill).view(pages, PAGE, -1)
        index = self._bytes(pages, PAGE * (INDEX_WIDTH // 2 + INDEX_WIDTH // 32), fill)
        cut = PAGE * INDEX_WIDTH // 2
        if fill:
            window[..., :WIDTH] &= 0xBF  # no NaN among random e4m3 codes
            window[..., WIDTH:] = window[..., WIDTH:] % 3 + 124
            main[..., WIDTH // 2 :] = main[..., WIDTH // 2 :] % 24 + 32
            index[:, cut:] = index[:, cut:] % 3 + 125
        self.window = bind_records("mxfp8", WIDTH, window[..., :WIDTH], window[..., WIDTH:])
        self.main = bind_records("fp4", WIDTH, main[..., : WIDTH // 2], main[..., WIDTH // 2 :])
        data, scales = index[:, :cut].view(pages, PAGE, -1), index[:, cut:].view(pages, PAGE, -1)
        self.index = bind_records("mxfp4", INDEX_WIDTH, data, scales)
        self.table = torch.arange(pages, device=place, dtype=torch.int32).view(sequences, -1)

    def _bytes(self, groups: int, size: int, fill: bool) -> torch.Tensor:
        if not fill:
            return torch.empty(groups, size, dtype=torch.uint8, device=self.place)
        return torch.randint(0, 256, (groups, size), dtype=torch.uint8, device=self.place)

    def slots(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random window and main slots of ``rows`` rows, in ascending order, int32."""
        owner = torch.arange(rows, device=self.place) % self.sequences
        near = owner[:, None] * RING + torch.arange(WINDOW, device=self.place)[None]
        drawn = torch.rand(rows, TOP, device=self.place)
        stride = self.context // TOP
        far = owner[:, None] * self.context + torch.arange(TOP, device=self.place)[None] * stride
        return near.to(torch.int32), (far + (drawn * stride).long()).to(torch.int32)


def _queries(rows: int, place: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = torch.randn(rows, HEADS, WIDTH, device=place).to(torch.bfloat16)
    steps = torch.tensor([0.5, 1, 1.5, 2, 3, -0.5, -1, -2], device=place)
    iq = steps[torch.randint(0, 8, (rows, INDEX_HEADS, INDEX_WIDTH), device=place)].to(torch.bfloat16)
    return q, iq, torch.randn(rows, INDEX_HEADS, device=place).to(torch.bfloat16)


def _launch(kind: str, tile: Any) -> None:
    caches, rows = Caches(2, CONTEXT, "cpu", False), 16
    q, iq, w = _queries(rows, "cpu")
    counts = torch.zeros(rows, dtype=torch.int32)
    if kind == "attend":
        attend(q, caches.window, *_pair(caches, rows), torch.zeros(HEADS), tile)
    elif kind == "scan":
        for keys in (False, True):
            scan(iq, w, caches.index, caches.table, counts, CONTEXT, BLOCK, tile, keys=keys, best=True)
    elif kind == "within":
        blocks = torch.zeros(rows, BLOCKS, dtype=torch.int32)
        scan(iq, w, caches.index, caches.table, counts, BLOCKS * BLOCK, BLOCK, tile, blocks)
    else:
        blocks = torch.zeros(rows, BLOCKS, dtype=torch.int32)
        best = torch.empty(rows, CONTEXT // BLOCK, dtype=torch.int16)
        best_blocks(best, counts, BLOCK, BLOCKS, TOP, warps=tile)
        for chosen in (blocks, blocks[:, :TOP].contiguous()):
            select_within(best, counts, TOP, chosen, BLOCK, warps=tile)


def _pair(caches: Caches, rows: int) -> tuple[torch.Tensor, BoundRecords, torch.Tensor]:
    near, far = caches.slots(rows)
    return near, caches.main, far


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles."""
    for kind, tiles in (("attend", ATTEND), ("scan", SCAN), ("within", WITHIN), ("select", WARPS)):
        for tile in tiles:
            yield _launch, (kind, tile)


def _attention(report: Report, caches: Caches) -> None:
    sink = torch.randn(HEADS, device=DEVICE)
    q, _, _ = _queries(64, DEVICE)
    near, far = caches.slots(64)
    far[3, 400:], near[4, :30], far[5], near[5] = -1, -1, -1, -1
    few = slice(2, 8)
    pools = []
    for pool, slots in ((caches.window, near), (caches.main, far)):
        chosen = load_records(pool, slots[few].flatten().long())
        pools.append(chosen)
    own = [
        torch.where(s[few] >= 0, torch.arange(s[few].numel(), device=DEVICE).view(s[few].shape), -1)
        for s in (near, far)
    ]
    wanted = reference.attention(q[few], pools[0], own[0], pools[1], own[1], sink)
    for tile in ATTEND:

        def check(tile: AttentionTile = tile) -> dict[str, Any]:
            whole = attend(q, caches.window, near, caches.main, far, sink, tile)
            first = attend(q, caches.window, near, caches.main, far, sink, ATTEND[0])
            alone = attend(q[7:8], caches.window, near[7:8], caches.main, far[7:8], sink, tile)
            unequal = int((whole != first).sum()) + int((alone != whole[7:8]).sum())
            return {"error": reference.relative(whole[few], wanted), "unequal": unequal}

        report.attempt(f"attend check {astuple(tile)}", check)
    for rows in (64, 4096, 1, 16, 256):
        q, _, _ = _queries(rows, DEVICE)
        sets = [caches.slots(rows) for _ in range(8 if rows <= 256 else 2)]
        num_bytes = rows * (WINDOW * 528 + TOP * 288 + 2 * HEADS * WIDTH * 2)
        flop = rows * HEADS * (WINDOW + TOP) * WIDTH * 4
        for tile in ATTEND:

            def speed(
                tile: AttentionTile = tile,
                q: Any = q,
                sets: Any = sets,
                b: float = num_bytes,
                f: float = flop,
            ) -> dict[str, float]:
                calls = [
                    lambda s=s: attend(q, caches.window, s[0], caches.main, s[1], sink, tile) for s in sets
                ]
                return against(timed(calls, 16 if len(q) <= 256 else 2), b, f)

            report.attempt(f"attend rows={rows} {astuple(tile)}", speed)


def _index(report: Report, caches: Caches) -> None:
    rows, length = 64, caches.context
    _, iq, w = _queries(rows, DEVICE)
    counts = torch.full((rows,), length, device=DEVICE, dtype=torch.int32)
    counts[1], counts[2] = 5000, 100_001
    again_args = (caches.index, caches.table, counts, TOP * BLOCK, BLOCK, WITHIN[0])

    def check() -> dict[str, Any]:
        keys, best = scan(iq, w, caches.index, caches.table, counts, length, BLOCK, SCAN[0], best=True)
        few = torch.arange(2048, device=DEVICE)
        decoded = load_records(
            caches.index, (few[None] + torch.tensor([[0], [3 * length]], device=DEVICE)).flatten()
        )
        scores = reference.index_scores(iq[0:4:3], w[0:4:3], decoded.view(2, 2048, -1)).to(torch.bfloat16)
        bits = scores.view(torch.int16).int()
        close = (keys[0:4:3, :2048].int() - (bits ^ ((bits >> 15) & 0x7FFF))).abs()
        seen = torch.arange(length, device=DEVICE)[None] < counts[:, None]
        known = torch.where(seen, keys.int(), ABSENT)
        order = torch.sort(known, descending=True, stable=True).indices[:, :TOP].sort().values
        found = {"key_steps_max": int(close.max()), "keys_off": int((close > 0).sum())}
        for warps in WARPS:
            candidates, own = best_blocks(best, counts, BLOCK, BLOCKS, TOP, warps=warps)
            again, _ = scan(iq, w, *again_args, own)
            chosen = select_within(again, counts, TOP, own, BLOCK, warps=warps)
            found[f"wrong, {warps} warps"] = int((chosen != order).sum())
        blocks = candidates.blocks
        top = torch.where(seen, known, ABSENT).view(rows, -1, BLOCK).amax(-1)
        last = ((counts - 1) // BLOCK)[:, None].long()
        top.scatter_(1, last, 40000)
        top = torch.where(torch.arange(length // BLOCK, device=DEVICE)[None] <= last, top, -(10**6))
        wanted = torch.sort(top, descending=True, stable=True)
        expected = torch.where(wanted.values > ABSENT, wanted.indices, 10**6)[:, :BLOCKS].sort().values
        expected = torch.where(expected == 10**6, -1, expected)
        found["blocks_wrong"] = int((blocks != expected).sum())
        for tile in SCAN:
            again, _ = scan(
                iq[2:3], w[2:3], caches.index, caches.table[2:3], counts[2:3], length, BLOCK, tile
            )
            visible = int(counts[2])
            found[f"unequal {astuple(tile)}"] = int((again[0, :visible] != keys[2, :visible]).sum())
        entries = (blocks.long()[:, :, None] * BLOCK + torch.arange(BLOCK, device=DEVICE)).flatten(1)
        usable = (blocks.repeat_interleave(BLOCK, 1) >= 0) & (entries < counts[:, None])
        there = torch.where(usable, known.gather(1, entries.clamp(0, length - 1)), ABSENT)
        for tile in WITHIN:
            within, _ = scan(
                iq, w, caches.index, caches.table, counts, BLOCKS * BLOCK, BLOCK, tile, blocks=blocks
            )
            found[f"within {astuple(tile)}"] = int((within.int() != there).sum())
        return found

    report.attempt("index check", check)
    counts.fill_(length)
    args = (caches.index, caches.table, counts)
    num_bytes, flop = rows * length * 68, rows * length * INDEX_HEADS * INDEX_WIDTH * 2
    for tile in SCAN:
        report.attempt(
            f"scan {astuple(tile)}",
            lambda tile=tile: against(
                timed(
                    [lambda: scan(iq, w, *args, length, BLOCK, tile, keys=False, best=True)],
                    4,
                ),
                num_bytes,
                flop,
            ),
        )
    _, best = scan(iq, w, *args, length, BLOCK, SCAN[0], keys=False, best=True)
    candidates, own = best_blocks(best, counts, BLOCK, BLOCKS, TOP)
    blocks = candidates.blocks
    for tile in WITHIN:
        whole = (iq, w, *args, BLOCKS * BLOCK, BLOCK, tile, blocks)
        report.attempt(
            f"within {astuple(tile)}",
            lambda whole=whole: against(
                timed([lambda: scan(*whole)], 8), rows * BLOCKS * BLOCK * 68, flop / length * BLOCKS * BLOCK
            ),
        )
    within, _ = scan(*whole)
    again, _ = scan(iq, w, *again_args, own)
    for warps in WARPS:
        for name, call in (
            ("entries", lambda v=warps: select_within(again, counts, TOP, own, BLOCK, warps=v)),
            ("blocks", lambda v=warps: best_blocks(best, counts, BLOCK, BLOCKS, TOP, warps=v)),
            ("within", lambda v=warps: select_within(within, counts, TOP, blocks, BLOCK, warps=v)),
        ):
            report.attempt(f"select {name}, {warps} warps", lambda call=call: {"us": timed([call], 8) * 1e6})


def _layers(report: Report, caches: Caches) -> None:
    """What a decoder layer of each kind does between its projections, at batch 64."""
    rows, length = 64, caches.context
    q, iq, w = _queries(rows, DEVICE)
    sink, counts = (
        torch.randn(HEADS, device=DEVICE),
        torch.full((rows,), length, device=DEVICE, dtype=torch.int32),
    )
    sets = [caches.slots(rows) for _ in range(8)]
    near, start = sets[0][0], (torch.arange(rows, device=DEVICE, dtype=torch.int32) * length)[:, None]
    args = (caches.index, caches.table, counts)
    _, best = scan(iq, w, *args, length, BLOCK, SCAN[0], keys=False, best=True)
    blocks = best_blocks(best, counts, BLOCK, BLOCKS, 0)[0].blocks
    attend_bytes = rows * (WINDOW * 528 + TOP * 288 + 2 * HEADS * WIDTH * 2)
    attend_flop = rows * HEADS * (WINDOW + TOP) * WIDTH * 4
    entry_flop = rows * INDEX_HEADS * INDEX_WIDTH * 2

    def mixed(far: torch.Tensor) -> None:
        attend(q, caches.window, near, caches.main, torch.where(far < 0, far, far + start), sink)

    def source() -> None:
        _, best = scan(iq, w, *args, length, BLOCK, SCAN[0], keys=False, best=True)
        _, own = best_blocks(best, counts, BLOCK, BLOCKS, TOP)
        keys, _ = scan(iq, w, *args, TOP * BLOCK, BLOCK, WITHIN[0], own)
        mixed(select_within(keys, counts, TOP, own, BLOCK))

    def reindex() -> None:
        keys, _ = scan(iq, w, *args, BLOCKS * BLOCK, BLOCK, WITHIN[0], blocks)
        mixed(select_within(keys, counts, TOP, blocks, BLOCK))

    reuse = [lambda s=s: attend(q, caches.window, s[0], caches.main, s[1], sink) for s in sets]
    for name, calls, entries in (
        ("source", [source], length),
        ("reindex", [reindex], 16384),
        ("reuse", reuse, 0),
    ):
        report.attempt(
            f"decoder layer, {name}, batch 64, 128k",
            lambda calls=calls, entries=entries: against(
                timed(calls, 8), attend_bytes + rows * entries * 68, attend_flop + entry_flop * entries
            ),
        )


def run(report: Report) -> None:
    """Errors, rows, times at 128k context."""
    caches = Caches(64, CONTEXT, DEVICE, True)
    _layers(report, caches)
    _index(report, caches)
    _attention(report, caches)
