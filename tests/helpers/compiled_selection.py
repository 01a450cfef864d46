"""Run the compiled selection of a row on a CPU; print places that are wrong, accesses
where nothing lies, and bytes that race.

Arguments: names of rows among ``few``, ``same`` and ``real``. ``torn`` is ``real`` without barriers, ``bent``
with a sum of a warp that leaves its first half out. ``blocks`` and ``parts`` are the first level instead,
candidates and best blocks of one part, and of one behind others; ``ragged`` is ``parts`` without barriers.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from compile_only import compile_only
from ptx_machine import Machine, Memory

NUM_BLOCKS, TOP, WARPS, GROUP = 2048, 512, 16, 128
SPOILED = {"torn": ("bar.sync", "griddepcontrol"), "bent": (", 16, 0, -1", ", 0, 0, -1")}
TEXT: list[str] = []


def compiled() -> str:
    """PTX of the selection among candidate blocks, records of the released pool."""
    from deepinfer.kernels.gpu.select_best import select_best

    compile_only(lambda name, ptx: TEXT.append(ptx))
    keys = torch.empty(1, NUM_BLOCKS * 8, dtype=torch.int16)
    blocks, counts = torch.zeros(1, NUM_BLOCKS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    table = torch.zeros(1, 1024, dtype=torch.int32)
    select_best(keys, keys[:, :NUM_BLOCKS].contiguous(), counts, TOP, 8, blocks, table, GROUP, WARPS)
    return TEXT[-1]


def row(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Candidate blocks [Nb] and their keys [Nb, 8]."""
    draw = np.random.default_rng(1)
    keys = np.full((NUM_BLOCKS, 8), -32768, np.int16)
    blocks = np.full(NUM_BLOCKS, -1, np.int32)
    if name == "few":
        blocks[0], keys[0, :3] = 5, (5, 9, 7)
    elif name == "same":
        blocks[:], keys[:] = np.arange(NUM_BLOCKS) * 3, 7
    else:
        blocks[:600] = np.sort(draw.permutation(16384)[:600])
        keys[:600] = draw.integers(-3000, 16000, (600, 8))
    return blocks, keys


def first_level(name: str) -> dict[str, int]:
    """Best blocks of three rows that tie in part, one of them short."""
    from deepinfer.kernels.gpu import select_blocks

    compile_only(lambda name, ptx: TEXT.append(ptx))
    num_carried, first = (0, 0) if name == "blocks" else (NUM_BLOCKS, 20480)
    draw, num_best = np.random.default_rng(3), 4096 - num_carried
    found = {"wrong": 0, "outside": 0, "races": 0}
    blank = torch.zeros(1, NUM_BLOCKS, dtype=torch.int32)
    carried = select_blocks.Carried(blank, blank.to(torch.int16)) if num_carried else None
    select_blocks.has_wgmma = lambda _: True
    best = torch.empty(1, num_best, dtype=torch.int16)
    counts = torch.zeros(1, dtype=torch.int32)
    select_blocks.best_blocks(best, counts, 8, NUM_BLOCKS, TOP, first, carried)
    for kind in range(3):
        names = np.sort(draw.permutation(max(first, 1))[:num_carried]).astype(np.int32)
        keys = draw.integers(-3000, 16000 if kind else -2990, num_carried + num_best).astype(np.int16)
        count = 8 * (first + (num_best if kind < 2 else 40)) - 3
        number = np.concatenate((names, first + np.arange(num_best))).astype(np.int32)
        seen = number * 8 < count
        newest = number == (count - 1) // 8
        chosen, own = np.full(NUM_BLOCKS, 77, np.int32), np.full(TOP, 77, np.int32)
        memory = Memory()
        arrays = [keys[num_carried:].copy(), np.array([count], np.int32)]
        arrays += [names, keys[:num_carried].copy()] if num_carried else [arrays[1].copy(), arrays[0].copy()]
        arrays += [chosen, np.full(NUM_BLOCKS, 77, np.int16), own]
        pointers = [memory.add(array) for array in arrays]
        sizes = [first, num_best, num_carried, NUM_BLOCKS, TOP, 0, 0]
        text = TEXT[-1].replace(*SPOILED["torn"]) if name == "ragged" else TEXT[-1]
        machine = Machine(text, 32 * WARPS, pointers + sizes, memory)
        try:
            machine.run()
        except IndexError:
            found["outside"] += 1
        for top, kept, out in ((NUM_BLOCKS, newest, chosen), (TOP, newest & False, own)):
            order = np.where(seen, np.where(kept, 40000, keys.astype(int)), -40000)
            place = np.argsort(-order, kind="stable")[:top]
            wanted = np.full(top, -1)
            wanted[: min(top, seen.sum())] = number[np.sort(place[order[place] > -40000])]
            found["wrong"] += int((out != wanted).sum())
        found["races"] += len(machine.races)
    return found


def main() -> None:
    """The rows that are asked for."""
    ptx, found = compiled(), {}
    for name in sys.argv[1:]:
        if name in ("blocks", "parts", "ragged"):
            found[name] = first_level(name)
            continue
        blocks, keys = row(name)
        chosen = np.full(TOP, 77, np.int32)
        table = np.random.default_rng(2).permutation(1024).astype(np.int32)
        memory = Memory()
        arrays = (keys, keys.max(axis=1), np.array([1 << 17], np.int32), blocks, table, chosen)
        pointers = [memory.add(array) for array in arrays]
        sizes = [keys.size, TOP, NUM_BLOCKS, NUM_BLOCKS, len(table), 0, 0]
        text = ptx.replace(*SPOILED[name]) if name in SPOILED else ptx
        machine = Machine(text, 32 * WARPS, pointers + sizes, memory)
        try:
            machine.run()
            outside = 0
        except IndexError:  # an access where nothing lies
            outside = 1
        place = np.argsort(-keys.reshape(-1).astype(int), kind="stable")[:TOP]
        place = np.sort(place[keys.reshape(-1)[place] > -32768])
        entry = blocks[place // 8].astype(int) * 8 + place % 8
        wanted = np.full(TOP, -1)
        wanted[: len(entry)] = table[entry // GROUP] * GROUP + entry % GROUP
        wrong = int((chosen != wanted).sum())
        found[name] = {"wrong": wrong, "outside": outside, "races": len(machine.races)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
