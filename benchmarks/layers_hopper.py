"""Section of ``gpu_layers.py``: the Gluon kernels of attention and index scores for Hopper chips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

import fast_references as reference
import torch
from layers_attention import (
    BLOCK,
    BLOCKS,
    CONTEXT,
    HEADS,
    INDEX_HEADS,
    INDEX_WIDTH,
    PAGE,
    TOP,
    WIDTH,
    WINDOW,
    Caches,
    _pair,
    _queries,
)
from layers_attention import SCAN as TRITON_SCAN
from layers_common import DEVICE, Report, against, timed

from deepinfer.kernels.gpu import hopper_attention, hopper_scan, packed_attention
from deepinfer.kernels.gpu import index_scan as triton_scan
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.hopper_scan import HopperScanTile
from deepinfer.kernels.gpu.records import load_records
from deepinfer.kernels.gpu.select16 import PoolGroups, select_entries, select_within
from deepinfer.kernels.gpu.select_blocks import best_blocks

ATTEND = ("gluon",)
SCAN = tuple(HopperScanTile(*t) for t in ((4, 112),))
WITHIN = tuple(HopperScanTile(*t) for t in ((4, 112),))
WANTED = ((BLOCKS, TOP), (BLOCKS, 0), (0, TOP))
"""Candidate blocks, and blocks of the first level."""


def _launch(kind: str, tile: Any) -> None:
    caches, rows = Caches(2, CONTEXT, "cpu", False), 16
    q, iq, w = _queries(rows, "cpu")
    counts = torch.zeros(rows, dtype=torch.int32)
    blocks = torch.zeros(rows, BLOCKS, dtype=torch.int32)
    own, groups = blocks[:, :TOP].contiguous(), PoolGroups(caches.table, PAGE)
    best_keys = torch.empty(rows, CONTEXT // BLOCK, dtype=torch.int16)
    args = (iq, w, caches.index, caches.table, counts)
    if kind == "attend":
        hopper_attention.attend(q, caches.window, *_pair(caches, rows), torch.zeros(HEADS))
    elif kind == "scan":
        for keys in (False, True):
            hopper_scan.scan(*args, CONTEXT, BLOCK, tile, keys=keys, best=True)
    elif kind == "within":
        hopper_scan.scan(*args, BLOCKS * BLOCK, BLOCK, tile, blocks, best=True)
        hopper_scan.scan(*args, TOP * BLOCK, BLOCK, tile, own)
    elif tile == 0:
        packed_attention.attend(q, caches.window, *_pair(caches, rows), torch.zeros(HEADS))
    elif tile == 1:
        triton_scan.scan(*args, CONTEXT, BLOCK, TRITON_SCAN[0], best=True)
    elif tile == 2:
        for num_blocks, top in WANTED:
            best_blocks(best_keys, counts, BLOCK, num_blocks, top)
    elif tile == 3:
        for chosen, best in ((own, None), (blocks, None), (blocks, best_keys[:, :BLOCKS].contiguous())):
            for named in (None, groups):
                select_within(best_keys, counts, TOP, chosen, BLOCK, groups=named, best=best)
    else:
        select_entries(best_keys[:, : TOP * BLOCK].contiguous(), blocks, counts, TOP, BLOCK, groups=groups)


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles."""
    for kind, tiles in (
        ("attend", ATTEND),
        ("scan", SCAN),
        ("within", WITHIN),
        ("others", tuple(range(5))),
    ):
        for tile in tiles:
            yield _launch, (kind, tile)


def _attention(report: Report, caches: Caches) -> None:
    sink, workspace = torch.randn(HEADS, device=DEVICE), Workspace.on(torch.device(DEVICE))
    q, _, _ = _queries(64, DEVICE)
    near, far = caches.slots(64)
    far[3, 400:], near[4, :30], far[5], near[5] = -1, -1, -1, -1
    few = slice(2, 8)
    pools = [
        load_records(pool, slots[few].flatten().long())
        for pool, slots in ((caches.window, near), (caches.main, far))
    ]
    own = [
        torch.where(s[few] >= 0, torch.arange(s[few].numel(), device=DEVICE).view(s[few].shape), -1)
        for s in (near, far)
    ]
    wanted = reference.attention(q[few], pools[0], own[0], pools[1], own[1], sink)

    def call(q: Any, near: Any, far: Any, tile: Any) -> torch.Tensor:
        if tile is None:
            return packed_attention.attend(q, caches.window, near, caches.main, far, sink)
        return hopper_attention.attend(q, caches.window, near, caches.main, far, sink, workspace)

    for tile in ATTEND:

        def check(tile: Any = tile) -> dict[str, Any]:
            whole = call(q, near, far, tile)
            triton = call(q, near, far, None)
            moved = sum(int((call(q, near, far, tile) != whole).sum()) for _ in range(20))
            unequal = moved + int((call(q, near, far, ATTEND[0]) != whole).sum())
            for low, high in ((7, 8), (0, 2), (1, 17), (5, 36), (0, 63)):
                part = call(q[low:high], near[low:high], far[low:high], tile)
                unequal += int((part != whole[low:high]).sum())
            return {
                "error": reference.relative(whole[few], wanted),
                "error_triton": reference.relative(triton[few], wanted),
                "unequal": unequal,
            }

        report.attempt(f"hopper attend check {tile}", check)
    for rows in (64, 4096, 1, 16, 256):
        q, _, _ = _queries(rows, DEVICE)
        sets = [caches.slots(rows) for _ in range(8 if rows <= 256 else 2)]
        num_bytes = rows * (WINDOW * 528 + TOP * 288 + 2 * HEADS * WIDTH * 2)
        flop = rows * HEADS * (WINDOW + TOP) * WIDTH * 4
        absent = [(a * 0 - 1, b * 0 - 1) for a, b in sets]
        for tile, inputs, name in [(t, sets, "") for t in (*ATTEND, None)] + [(ATTEND[0], absent, " absent")]:

            def speed(
                tile: Any = tile, inputs: Any = inputs, q: Any = q, b: float = num_bytes, f: float = flop
            ) -> Any:
                calls = [lambda s=s: call(q, s[0], s[1], tile) for s in inputs]
                return against(timed(calls, 16 if len(q) <= 256 else 2), b, f)

            report.attempt(f"hopper attend rows={rows} {tile}{name}", speed)


def _index(report: Report, caches: Caches) -> None:
    rows, length = 64, caches.context
    _, iq, w = _queries(rows, DEVICE)
    iq[5, 3] *= 64.0
    iq[6, :, 32:64] *= 2.0**-9
    counts = torch.full((rows,), length, device=DEVICE, dtype=torch.int32)
    counts[1], counts[2] = 5000, 100_001
    args = (caches.index, caches.table, counts, length, BLOCK)
    there = torch.arange(length, device=DEVICE)[None] < counts[:, None]

    def check(tile: HopperScanTile) -> dict[str, Any]:
        keys, best = hopper_scan.scan(iq, w, *args, tile, best=True)
        again, _ = hopper_scan.scan(iq, w, *args, tile, best=True)
        few = torch.arange(2048, device=DEVICE)
        found: dict[str, Any] = {"moved": int(((keys != again) & there).sum())}
        for row in (0, 3, 5, 6):
            decoded = load_records(caches.index, few + row * length)
            scores = reference.index_scores(iq[row : row + 1], w[row : row + 1], decoded[None]).to(
                torch.bfloat16
            )
            bits = scores.view(torch.int16).int()
            close = (keys[row : row + 1, :2048].int() - (bits ^ ((bits >> 15) & 0x7FFF))).abs()
            found[f"row {row}: most steps, off"] = (int(close.max()), int((close > 0).sum()))
        old, _ = triton_scan.scan(iq, w, *args, TRITON_SCAN[0], best=True)
        found["unlike triton"] = int(((old != keys) & there).sum())
        tops = torch.where(there, keys.int(), -32768).view(rows, -1, BLOCK).amax(-1)
        usable = there.view(rows, -1, BLOCK).any(-1)
        found["best wrong"] = int(((tops != best) & usable).sum())
        part, _ = hopper_scan.scan(
            iq[2:3], w[2:3], caches.index, caches.table[2:3], counts[2:3], length, BLOCK, SCAN[0]
        )
        found["unequal"] = int((part[0, :100_001] != keys[2, :100_001]).sum())
        _, alone = hopper_scan.scan(iq, w, *args, tile, keys=False, best=True)
        found["largest alone, unequal"] = int(((alone != best) & usable).sum())
        return found

    for tile in SCAN:
        report.attempt(f"hopper scan check {astuple(tile)}", lambda tile=tile: check(tile))
    keys, best = hopper_scan.scan(iq, w, *args, SCAN[0], best=True)
    blocks = best_blocks(best, counts, BLOCK, BLOCKS, 0)[0].blocks
    entries = (blocks.long()[:, :, None] * BLOCK + torch.arange(BLOCK, device=DEVICE)).flatten(1)
    usable = (blocks.repeat_interleave(BLOCK, 1) >= 0) & (entries < counts[:, None])
    wanted = torch.where(usable, keys.int().gather(1, entries.clamp(0, length - 1)), triton_scan.ABSENT)
    args_within = (caches.index, caches.table, counts, BLOCKS * BLOCK, BLOCK)

    def check_within(tile: HopperScanTile) -> int:
        return int((hopper_scan.scan(iq, w, *args_within, tile, blocks)[0].int() != wanted).sum())

    for tile in WITHIN:
        report.attempt(f"hopper within check {astuple(tile)}, wrong", lambda tile=tile: check_within(tile))
    counts.fill_(length)
    keys, best = hopper_scan.scan(iq, w, *args, SCAN[0], best=True)
    num_bytes, flop = rows * length * 68, rows * length * INDEX_HEADS * INDEX_WIDTH * 2
    for tile in (*SCAN, None):
        use: Callable[..., Any] = triton_scan.scan if tile is None else hopper_scan.scan
        for kept in (False, True):
            call = [lambda u=use, t=tile or TRITON_SCAN[0], k=kept: u(iq, w, *args, t, keys=k, best=True)]
            report.attempt(
                f"hopper scan {tile and astuple(tile)}{', keys kept' if kept else ''}",
                lambda c=call: against(timed(c, 4), num_bytes, flop),
            )
    candidates, own = best_blocks(best, counts, BLOCK, BLOCKS, TOP)
    blocks = candidates.blocks
    args_own = (caches.index, caches.table, counts, TOP * BLOCK, BLOCK)
    for tile in WITHIN:
        for name, chosen, more in (("within", blocks, args_within), ("again", own, args_own)):
            call = [
                lambda t=tile, a=more, b=chosen, k=name == "within": hopper_scan.scan(iq, w, *a, t, b, best=k)
            ]
            share = chosen.shape[1] * BLOCK / length
            report.attempt(
                f"hopper {name} {astuple(tile)}",
                lambda c=call, s=share: against(timed(c, 8), num_bytes * s, flop * s),
            )
    within, tops = hopper_scan.scan(iq, w, *args_within, WITHIN[0], blocks, best=True)
    again, _ = hopper_scan.scan(iq, w, *args_own, WITHIN[0], own)
    groups = PoolGroups(caches.table, PAGE)

    def check_select() -> dict[str, int]:
        order = torch.sort(keys.int(), descending=True, stable=True).indices[:, :TOP].sort().values
        slots = select_within(again, counts, TOP, own, BLOCK, groups=groups)
        start = torch.arange(rows, device=DEVICE)[:, None] * length
        alone = best_blocks(best, counts, BLOCK, 0, TOP)[1]
        return {
            "entries": int((select_within(again, counts, TOP, own, BLOCK) != order).sum()),
            "blocks": int((alone != own).sum()),
            "records": int((slots != order + start).sum()),
            "within": int((select_within(within, counts, TOP, blocks, BLOCK, best=tops) != order).sum()),
            "within, all keys": int((select_within(within, counts, TOP, blocks, BLOCK) != order).sum()),
        }

    report.attempt("hopper select check, wrong", check_select)
    for name, run in (
        ("entries", lambda: select_within(again, counts, TOP, own, BLOCK, groups=groups)),
        ("blocks", lambda: best_blocks(best, counts, BLOCK, BLOCKS, TOP)),
        ("candidates alone", lambda: best_blocks(best, counts, BLOCK, BLOCKS, 0)),
        ("first level alone", lambda: best_blocks(best, counts, BLOCK, 0, TOP)),
        ("within", lambda: select_within(within, counts, TOP, blocks, BLOCK, groups=groups, best=tops)),
        ("within, all keys", lambda: select_within(within, counts, TOP, blocks, BLOCK, groups=groups)),
    ):
        report.attempt(f"hopper select {name} us", lambda r=run: round(timed([r], 8) * 1e6, 2))


def _layers(report: Report, caches: Caches) -> None:
    rows, length = 64, caches.context
    q, iq, w = _queries(rows, DEVICE)
    counts = torch.full((rows,), length, device=DEVICE, dtype=torch.int32)
    sets = [caches.slots(rows) for _ in range(8)]
    near, sink = sets[0][0], torch.randn(HEADS, device=DEVICE)
    workspace = Workspace.on(torch.device(DEVICE))
    groups = PoolGroups(caches.table, PAGE)
    args = (caches.index, caches.table, counts, length, BLOCK)
    _, best = hopper_scan.scan(iq, w, *args, SCAN[0], best=True)
    blocks = best_blocks(best, counts, BLOCK, BLOCKS, 0)[0].blocks

    def mixed(far: torch.Tensor) -> None:
        hopper_attention.attend(q, caches.window, near, caches.main, far, sink, workspace)

    def source() -> None:
        _, best = hopper_scan.scan(iq, w, *args, SCAN[0], keys=False, best=True)
        _, own = best_blocks(best, counts, BLOCK, BLOCKS, TOP)
        keys, _ = hopper_scan.scan(iq, w, *args[:3], TOP * BLOCK, BLOCK, WITHIN[0], own)
        mixed(select_within(keys, counts, TOP, own, BLOCK, groups=groups))

    def reindex() -> None:
        keys, best = hopper_scan.scan(
            iq, w, caches.index, caches.table, counts, BLOCKS * BLOCK, BLOCK, WITHIN[0], blocks, best=True
        )
        mixed(select_within(keys, counts, TOP, blocks, BLOCK, groups=groups, best=best))

    reuse = [
        lambda s=s: hopper_attention.attend(q, caches.window, s[0], caches.main, s[1], sink, workspace)
        for s in sets
    ]
    attend_bytes = rows * (WINDOW * 528 + TOP * 288 + 2 * HEADS * WIDTH * 2)
    attend_flop = rows * HEADS * (WINDOW + TOP) * WIDTH * 4
    entry_flop = rows * INDEX_HEADS * INDEX_WIDTH * 2
    for name, calls, entries in (
        ("source", [source], length),
        ("reindex", [reindex], 16384),
        ("reuse", reuse, 0),
    ):
        report.attempt(
            f"hopper decoder layer, {name}, batch 64, 128k",
            lambda calls=calls, entries=entries: against(
                timed(calls, 8), attend_bytes + rows * entries * 68, attend_flop + entry_flop * entries
            ),
        )


def run(report: Report) -> None:
    """Errors, rows, times at 128k context."""
    caches = Caches(64, CONTEXT, DEVICE, True)
    for part in (_attention, _index, _layers):
        report.attempt(f"hopper {part.__name__}", lambda part=part: part(report, caches))
