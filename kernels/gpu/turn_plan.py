"""Plans a turn in a handful of launches; integers alone, those of ``turn_chains.plan_turn``.

One program places the sequences, then one a row and one a sequence work out what is theirs, and the entries
of each compress ratio are found by tiles.

Legend: R sequences, T rows, q most rows of a sequence, W window, n ids of an Engram hash.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.budget import verify_budget
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.gpu.turn_sequences import place_sequences
from deepinfer.kernels.turn_operands import (
    DRAFTS,
    FLOOR,
    HEAT,
    LOW,
    SAMPLE,
    SEED,
    SLOT,
    TOP_K,
    TurnForm,
    TurnGroups,
    TurnPlan,
    TurnState,
)

_TILE = 256
_FIXED = 8
"""Integers of a row beside those of its compress ratios: owner, position, the next one, id, seed, sample,
top_k, ring record; one more for the ring of drafts."""
_PER_RATIO = 6


@device
def _floats(pair: Block) -> tuple[Block, Block]:
    """The two float32 of an int64."""
    low = (pair & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)
    return low, ((pair >> 32) & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)


@kernel
def _rows_kernel(
    table: Ptr,
    line: Ptr,
    starts: Ptr,
    counts: Ptr,
    firsts: Ptr,
    whole: Ptr,
    real: Ptr,
    recent: Ptr,
    windows: Ptr,
    low_windows: Ptr,
    pairs: Ptr,
    num_rows: int,
    num_items: int,
    stride: int,
    first_base: int,
    first_block: int,
    ring: int,
    draft_ring: int,
    half_depth: int,
    block_tokens: int,
    COLUMNS: tl.constexpr,
    LINE: tl.constexpr,
    HISTORY: tl.constexpr,
    WIDE: tl.constexpr,
    HAS_LOW: tl.constexpr,
    RATIOS: tl.constexpr,
    WINDOW: tl.constexpr,
    LANES: tl.constexpr,
    SEQUENCES: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One row; ``COLUMNS`` are those of slot, low, seed, sample, heat, floor and top_k."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    owner, step = row, row * 0
    if WIDE:
        other = tl.arange(0, SEQUENCES)
        inside = other < num_items
        ends = tl.load(firsts + other, inside, other=0) + tl.load(counts + other, inside, other=0)
        found = tl.sum((inside & (ends <= row)).to(tl.int64), axis=0)
        is_row = found < num_items
        owner = tl.minimum(found, num_items - 1)
        step = tl.where(is_row, row - tl.load(firsts + owner), 0)
    else:
        is_row = tl.load(counts + row) > 0
    start, first = tl.load(starts + owner), tl.load(firsts + owner)
    position = tl.where(is_row, start + step, 0)
    own = table + owner * stride
    slot = tl.load(own + COLUMNS[0])
    newest = line + owner * LINE + step + HISTORY - 1
    token = tl.load(newest)
    for k in tl.static_range(HISTORY):
        tl.store(recent + row * HISTORY + k, tl.load(newest - k))
    out = whole + row
    tl.store(out, owner)
    tl.store(out + num_rows, position)
    tl.store(out + 2 * num_rows, position + 1)
    tl.store(out + 3 * num_rows, tl.maximum(token, 0))
    tl.store(out + 4 * num_rows, tl.load(own + COLUMNS[2]))
    tl.store(out + 5 * num_rows, tl.load(own + COLUMNS[3]))
    tl.store(out + 6 * num_rows, tl.load(own + COLUMNS[6]))
    tl.store(out + 7 * num_rows, tl.where(is_row, slot * ring + position % ring, -1))
    temperature, top_p = _floats(tl.load(own + COLUMNS[4]))
    min_p, _ = _floats(tl.load(own + COLUMNS[5]))
    tl.store(real + row, temperature)
    tl.store(real + num_rows + row, top_p)
    tl.store(real + 2 * num_rows + row, min_p)
    out += 8 * num_rows
    for g in tl.static_range(len(RATIOS)):
        ratio = RATIOS[g]
        entry, per_block = position // ratio, block_tokens // ratio
        completes = is_row & ((position + 1) % ratio == 0)
        record = tl.load(own + first_block + entry // per_block) * per_block + entry % per_block
        tl.store(out, tl.where(is_row, tl.load(own + first_base + g), 0))
        tl.store(out + num_rows, tl.where(is_row, (position + 1) // ratio, 0))
        tl.store(out + 2 * num_rows, tl.where(completes, position + 1 - ratio, 0))
        tl.store(out + 3 * num_rows, tl.where(completes, record, -1))
        if ratio == 2:
            kept = slot * half_depth
            earlier = num_rows + kept + tl.maximum(position - 1, 0) // 2 % half_depth
            opening = tl.where(step == 0, earlier, row - 1)
            tl.store(pairs + 2 * row, tl.where(completes, opening, 0))
            tl.store(pairs + 2 * row + 1, tl.where(completes, row, 0))
            is_half = is_row & (position % 2 == 0)
            tl.store(out + 4 * num_rows, tl.where(is_half, kept + position // 2 % half_depth, -1))
            tl.store(out + 5 * num_rows, row)
        out += 6 * num_rows
    if draft_ring > 0:
        tl.store(out, tl.where(is_row, slot * draft_ring + position % draft_ring, -1))
    lane = tl.arange(0, LANES)
    seen = position + (1 - WINDOW) + lane
    in_history = owner * (WINDOW - 1) + (WINDOW - 1) - start
    in_step = num_items * (WINDOW - 1) - start + first
    places = seen + tl.where(seen < start, in_history, in_step)
    is_place = lane < WINDOW
    tl.store(windows + row * WINDOW + lane, tl.where(is_row & (seen >= 0), places, -1), is_place)
    if HAS_LOW:
        low = tl.load(own + COLUMNS[1])
        tl.store(low_windows + row * WINDOW + lane, tl.where(is_row & (seen >= low), places, -1), is_place)


@kernel
def _entries_kernel(
    table: Ptr,
    starts: Ptr,
    counts: Ptr,
    records: Ptr,
    num_items: int,
    stride: int,
    base: int,
    first_block: int,
    num_blocks: int,
    per_block: int,
    room: int,
    RATIO: tl.constexpr,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Records of a tile of entries; whose they are is found by halving."""
    if EARLY:
        after_launches_before()
    entry = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    low, high = entry * 0, entry * 0 + num_items
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        is_open = low < high
        is_left = is_open & (tl.load(table + middle * stride + base, is_open, other=0) <= entry)
        low, high = tl.where(is_left, middle + 1, low), tl.where(is_open & ~is_left, middle, high)
    whose = tl.maximum(low - 1, 0)
    own = table + whose * stride
    mine = entry - tl.load(own + base)
    exists = mine < (tl.load(starts + whose) + tl.load(counts + whose)) // RATIO
    block = tl.minimum(tl.where(exists, mine // per_block, 0), num_blocks - 1)
    record = tl.load(own + first_block + block) * per_block + mine % per_block
    tl.store(records + entry, tl.where(exists, record, -1), entry < room)


def plan_turn(table: torch.Tensor, state: TurnState, form: TurnForm) -> TurnPlan:
    """See ``Ops.plan_turn``."""
    place = table.device
    sequences, rows = form.num_sequences, form.num_rows
    budget = None
    if form.is_shared_out:
        slots = table[:, SLOT]
        sure = state.sure[torch.where(slots >= 0, slots, len(state.start) - 1), : form.width - 1]
        budget = verify_budget(sure, table[:, DRAFTS], rows - sequences)
    placed = place_sequences(table, state, form, budget)
    ratios = tuple(ratio for ratio, _, _ in form.entries)
    has_rings = form.draft_ring > 0
    whole = torch.empty(_FIXED + _PER_RATIO * len(ratios) + has_rings, rows, dtype=torch.int64, device=place)
    real = torch.empty(3, rows, device=place)
    recent = torch.empty(rows, form.history, dtype=torch.int64, device=place)
    windows = torch.empty(1 + form.has_low, rows, form.window, dtype=torch.int64, device=place)
    pairs = torch.empty(rows, 2, dtype=torch.int64, device=place)
    launch(
        _rows_kernel,
        (rows,),
        *(table, placed.line, placed.start, placed.count, placed.first),
        *(whole, real, recent, windows[0], windows[-1], pairs),
        *(rows, sequences, table.stride(0), form.first_base, form.first_block),
        *(form.ring, form.draft_ring, form.half_depth, form.block_tokens),
        num_warps=1,
        COLUMNS=(SLOT, LOW, SEED, SAMPLE, HEAT, FLOOR, TOP_K),
        LINE=placed.line.shape[1],
        HISTORY=form.history,
        WIDE=form.width > 1,
        HAS_LOW=form.has_low,
        RATIOS=ratios,
        WINDOW=form.window,
        LANES=power_of_two(form.window),
        SEQUENCES=power_of_two(sequences),
    )
    lines = list(whole.unbind(0))
    per_ratio = [lines[_FIXED + _PER_RATIO * g :][:_PER_RATIO] for g in range(len(ratios))]
    return TurnPlan(
        place=placed.place,
        start=placed.start,
        count=placed.count,
        first=placed.first,
        line=placed.line,
        owner=lines[0],
        positions=lines[1],
        following=lines[2],
        token_ids=lines[3],
        recent=recent,
        seeds=lines[4],
        samples=lines[5],
        top_k=lines[6],
        temperature=real[0],
        top_p=real[1],
        min_p=real[2],
        windows=windows[0],
        low_windows=windows[1] if form.has_low else None,
        history=placed.history,
        ring=lines[7],
        draft_ring=lines[-1] if has_rings else lines[0][:0],
        base=tuple(found[0] for found in per_ratio),
        visible=tuple(found[1] for found in per_ratio),
        groups=tuple(
            _groups(table, placed.start, placed.count, form, number, found, pairs)
            for number, found in enumerate(per_ratio)
        ),
    )


def _groups(
    table: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    form: TurnForm,
    number: int,
    found: list[torch.Tensor],
    pairs: torch.Tensor,
) -> TurnGroups:
    """Entries of a ratio; ``found`` are the integers of its rows."""
    ratio, room, _ = form.entries[number]
    records = torch.empty(room, dtype=torch.int64, device=table.device)
    launch(
        _entries_kernel,
        (ceil_div(room, _TILE),),
        *(table, start, count, records, form.num_sequences, table.stride(0), form.first_base + number),
        *(form.first_block, form.num_blocks, form.block_tokens // ratio, room),
        num_warps=2,
        RATIO=ratio,
        STEPS=form.num_sequences.bit_length(),
        TILE=_TILE,
    )
    has_halves = ratio == 2
    return TurnGroups(
        records=records,
        starts=found[2],
        writes=found[3],
        pairs=pairs if has_halves else pairs[:, :0],
        waiting=found[4] if has_halves else found[4][:0],
        halves=found[5] if has_halves else found[5][:0],
    )
