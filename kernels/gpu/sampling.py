"""Samples one token per row on the device, profile strict: the rule of ``kernels/cpu/sampling.py``.

Sums of probabilities keep the order of log-softmax; everything after that is integer work without an order.
A cut (top-k or top-p) keeps tokens by descending logit, ties to the lower id, while the weights before them
sum to at most a limit; the logit where this walk ends is found by a search over the bits of its ordered key.
Int64 is chosen by products with 0 or 1 and divided without a remainder of its own: Ascend has no selection of
int64, and its remainder is exact up to 2**24 only.

Legend: R rows, V vocabulary, L lanes of the draw, n random words.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import exp, ordered
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
from deepinfer.kernels.gpu.logprobs import largest_of, mass_sums
from deepinfer.kernels.gpu.narrow_log import log_by
from deepinfer.kernels.gpu.selection import unsigned

_MAX_LANES, _LANES_FROM = 2048, 8192
_TILE = 1024


def num_lanes(vocabulary: int) -> int:
    """Lanes of the draw; lane c holds the ids c, c + lanes, c + 2 * lanes and so on."""
    return _MAX_LANES if vocabulary >= _LANES_FROM else power_of_two(vocabulary)


@kernel
def _mass_kernel(
    logits: Ptr,
    largest: Ptr,
    heat: Ptr,
    scaled: Ptr,
    masses: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """``z = (l - M) / temperature`` and ``exp(z)``; a greedy row is divided by 1, it will not be used."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside, temperature = v < vocabulary, tl.load(heat + row)
    value = tl.load(logits + row * vocabulary + v, inside, other=0.0) - tl.load(largest + row)
    divisor = tl.zeros((TILE,), tl.float32) + tl.where(temperature == 0.0, 1.0, temperature)
    z = tl.div_rn(value, divisor)
    tl.store(scaled + row * vocabulary + v, z, inside)
    tl.store(masses + row * vocabulary + v, exp(z), inside)


@device
def _share(mass: Block, total: Block) -> Block:
    """``(mass / total) * 2**31``, whose whole part is a token's weight; 0 where the quotient is no number."""
    share = tl.div_rn(mass, tl.zeros(mass.shape, tl.float32) + total) * 2147483648.0
    return tl.where(share == share, share, 0.0)


@kernel
def _cut_kernel(
    logits: Ptr,
    masses: Ptr,
    totals: Ptr,
    top_p: Ptr,
    top_k: Ptr,
    cuts: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Where the walk ends: ``cuts`` int64 [R, 2, 2] holds threshold key and tokens kept among its equals.

    Program 1 on the second axis is top-k, every token weighing 1; program 0 is top-p. Threshold -1: no cut.
    """
    if EARLY:
        after_launches_before()
    row, by_count = tl.program_id(0).to(tl.int64), tl.program_id(1) == 1
    line, lane = row * vocabulary, tl.arange(0, TILE)
    total, mass_share, count = tl.load(totals + row), tl.load(top_p + row), tl.load(top_k + row)
    active = (by_count & (count > 0) & (count < vocabulary)) | ((by_count == 0) & (mass_share < 1.0))
    counts = by_count.to(tl.int64)
    limit = counts * (count - 1) + (1 - counts) * (mass_share * 2147483648.0).to(tl.int64)
    threshold, kept = row * 0 - 1, row * 0
    if active:
        threshold = row * 0  # grows to the largest key that weighs more than the limit with all above it
        exceeds = row * 0
        for i in range(0, 32):
            bit = row * 0 + 1 << (31 - i)
            reached = row * 0
            for first in range(0, vocabulary, TILE):
                v = first + lane
                u = unsigned(ordered(tl.load(logits + line + v, v < vocabulary, other=0.0)))
                share = _share(tl.load(masses + line + v, v < vocabulary, other=0.0), total)
                share = tl.where(by_count, 1.0, share)
                counted = (v < vocabulary) & (u >= threshold + bit)
                reached += tl.sum(tl.where(counted, share, 0.0).to(tl.int64), axis=0)
            threshold += bit * (reached > limit).to(tl.int64)
            exceeds += (reached > limit).to(tl.int64)
        before, own = row * 0, row * 0
        for first in range(0, vocabulary, TILE):
            v = first + lane
            u = unsigned(ordered(tl.load(logits + line + v, v < vocabulary, other=0.0)))
            share = _share(tl.load(masses + line + v, v < vocabulary, other=0.0), total)
            share = tl.where(by_count, 1.0, share)
            above, level = (v < vocabulary) & (u > threshold), (v < vocabulary) & (u == threshold)
            before += tl.sum(tl.where(above, share, 0.0).to(tl.int64), axis=0)
            own = tl.maximum(own, tl.max(tl.where(level, share, 0.0).to(tl.int64), axis=0))
        kept = (limit - before) // tl.maximum(own, 1) + 1
        threshold = (threshold + 1) * (exceeds > 0).to(tl.int64) - 1
    place = cuts + (row * 2 + tl.program_id(1)) * 2
    tl.store(place, threshold)
    tl.store(place + 1, kept)


@kernel
def _drop_kernel(
    logits: Ptr,
    scaled: Ptr,
    masses: Ptr,
    cuts: Ptr,
    min_p: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    FP64: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Zero the masses of the tokens that a filter drops."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    line, lane = row * vocabulary, tl.arange(0, TILE)
    mass_key, mass_kept = tl.load(cuts + row * 4), tl.load(cuts + row * 4 + 1)
    count_key, count_kept = tl.load(cuts + row * 4 + 2), tl.load(cuts + row * 4 + 3)
    floor = tl.load(min_p + row)
    lowest = tl.where(floor > 0.0, log_by(floor, FP64), float("-inf"))
    if (mass_key >= 0) | (count_key >= 0) | (floor > 0.0):  # else nothing is dropped, whatever the logits
        mass_seen, count_seen = row * 0, row * 0
        for first in range(0, vocabulary, TILE):
            v = first + lane
            inside = v < vocabulary
            u = unsigned(ordered(tl.load(logits + line + v, inside, other=0.0)))
            by_mass, by_count = inside & (u == mass_key), inside & (u == count_key)
            mass_rank = mass_seen + tl.cumsum(by_mass.to(tl.int64), axis=0)
            count_rank = count_seen + tl.cumsum(by_count.to(tl.int64), axis=0)
            dropped = (u < mass_key) | (by_mass & (mass_rank > mass_kept))
            dropped = dropped | (u < count_key) | (by_count & (count_rank > count_kept))
            z = tl.load(scaled + line + v, inside, other=0.0)
            dropped = dropped | (z < lowest)
            tl.store(masses + line + v, tl.zeros((TILE,), tl.float32), inside & dropped)
            mass_seen += tl.sum(by_mass.to(tl.int64), axis=0)
            count_seen += tl.sum(by_count.to(tl.int64), axis=0)


@kernel
def _draw_kernel(
    masses: Ptr,
    totals: Ptr,
    words: Ptr,
    tokens: Ptr,
    vocabulary: int,
    num_words: int,
    depth: int,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """The token that the first accepted word points at, lane by lane."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    line, total, lane = masses + row * vocabulary, tl.load(totals + row), tl.arange(0, LANES)
    lanes = tl.zeros((LANES,), tl.int64)
    for m in range(0, depth):
        v = m * LANES + lane
        lanes += _share(tl.load(line + v, v < vocabulary, other=0.0), total).to(tl.int64)
    sum_of_all = tl.maximum(tl.sum(lanes, axis=0), 1)  # 1 only in rows that are refused
    bound = 4294967295 // sum_of_all * sum_of_all
    word = tl.load(words + row * num_words)
    for i in range(1, num_words):
        accepted = (word < bound).to(tl.int64)
        word = accepted * word + (1 - accepted) * tl.load(words + row * num_words + i)
    rest = word - word // sum_of_all * sum_of_all
    ends = tl.cumsum(lanes, axis=0)
    own = tl.sum((ends <= rest).to(tl.int64), axis=0)
    rest = rest - tl.sum(lanes * (lane < own).to(tl.int64), axis=0)
    m = tl.arange(0, DEPTH)
    v = m * LANES + own
    ends = tl.cumsum(_share(tl.load(line + v, v < vocabulary, other=0.0), total).to(tl.int64), axis=0)
    token = tl.sum((ends <= rest).to(tl.int64), axis=0) * LANES + own
    tl.store(tokens + row, tl.minimum(token, vocabulary - 1))


@kernel
def _answer_kernel(
    logits: Ptr,
    largest: Ptr,
    heat: Ptr,
    scaled: Ptr,
    full: Ptr,
    totals: Ptr,
    ids: Ptr,
    logprobs: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    FP64: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Greedy rows take the first largest logit; rows without a usable distribution get -1."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    line, lane, top = row * vocabulary, tl.arange(0, TILE), tl.load(largest + row)
    first_best, broken = row * 0 + vocabulary, row * 0
    for first in range(0, vocabulary, TILE):
        v = first + lane
        value = tl.load(logits + line + v, v < vocabulary, other=float("-inf"))
        best = tl.min(tl.where((v < vocabulary) & (value == top), v, vocabulary), axis=0)
        first_best = tl.minimum(first_best, best.to(tl.int64))
        broken += tl.sum((value != value).to(tl.int64), axis=0)
    usable = (broken == 0) & (tl.abs(top) < float("inf"))
    token = tl.load(ids + row)
    drawn = tl.load(scaled + line + token) - log_by(tl.load(totals + row), FP64)
    full_total = tl.load(full + row)
    if tl.load(heat + row) == 0.0:
        token = (first_best + 1) * usable.to(tl.int64) - 1
        drawn = full_total * 0.0
        drawn = tl.where(drawn == drawn, 0.0, 0.0)
    elif (full_total < float("inf")) == 0:
        token = row * 0 - 1
        drawn = tl.where(drawn == drawn, float("nan"), float("nan"))
    tl.store(ids + row, token)
    tl.store(logprobs + row, drawn)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    min_p: torch.Tensor,
    words: torch.Tensor,
    mass_sums: Callable[[torch.Tensor], torch.Tensor] = mass_sums,
    fp64: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, V], four [R], words int64 [R, n] -> ids int64 [R], processed log-probabilities [R]; see ``Ops``.

    ``fp64``: whether the chip computes in float64; the bits are the same.
    """
    source = logits.contiguous()
    heat, mass, count = temperature.contiguous(), top_p.contiguous(), top_k.contiguous()
    floor, random = min_p.contiguous(), words.contiguous()
    num_rows, vocabulary = source.shape
    largest = largest_of(source)
    scaled, masses = torch.empty_like(source), torch.empty_like(source)
    grid = (num_rows, ceil_div(vocabulary, _TILE))
    launch(_mass_kernel, grid, source, largest, heat, scaled, masses, vocabulary, TILE=_TILE)
    full = mass_sums(masses)
    cuts = torch.empty(num_rows, 2, 2, dtype=torch.int64, device=source.device)
    launch(_cut_kernel, (num_rows, 2), source, masses, full, mass, count, cuts, vocabulary, TILE=_TILE)
    arguments = (source, scaled, masses, cuts, floor, vocabulary)
    launch(_drop_kernel, (num_rows,), *arguments, TILE=_TILE, FP64=fp64)
    totals = mass_sums(masses)
    ids, logprobs = torch.empty_like(count), source.new_empty(num_rows)
    lanes = num_lanes(vocabulary)
    depth = ceil_div(vocabulary, lanes)
    sizes = {"LANES": lanes, "DEPTH": power_of_two(depth)}
    launch(
        _draw_kernel, (num_rows,), masses, totals, random, ids, vocabulary, random.shape[1], depth, **sizes
    )
    results = (source, largest, heat, scaled, full, totals, ids, logprobs, vocabulary)
    launch(_answer_kernel, (num_rows,), *results, TILE=_TILE, FP64=fp64)
    return ids, logprobs
