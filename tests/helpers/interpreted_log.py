"""Logarithms without float64 in the exact interpreter, against those of the CPU; prints JSON.

``near``: of ``log`` and ``log1p``, how many values were looked at and how many had other bits; they are those
whose float64 result lies close to the middle of two float32, and every so many others. ``listed``: how many
of the values that the module lists had other bits, and how many would have if it did not list them.
``softplus``, ``special``: how many of other values differ. With the argument ``all``, ``near`` covers every
float32.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from exact_interpreter import make_exact

make_exact()

import triton.language as tl  # noqa: E402

from deepinfer.kernels.cpu import elementary  # noqa: E402
from deepinfer.kernels.gpu import narrow_log  # noqa: E402
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch  # noqa: E402

Array = npt.NDArray[Any]
TILE = 1 << 16
PART = 1 << 24
LISTED = {
    "log": (0x3C413D3A, 0x41178FEB, 0x4C5D65A5, 0x65D890D3, 0x6F31A8EC),
    "log1p": (0x35400003, 0x3710001B, 0x41078FEB),
}
ENDS = {"log": 0x7F800000, "log1p": int(np.float32(4.86e8).view(np.uint32))}
"""Bit patterns of infinity, and of a number above ``exp(20)``."""


@numba.njit(error_model="numpy")
def in_float64(x: np.float32, plus_one: bool) -> np.float64:
    """What the CPU rounds: of ``log``, or of the logarithm in ``softplus``."""
    if not plus_one:
        return elementary.log64(np.float64(x))
    e = np.float64(x)
    u = 1.0 + e
    return e if u == 1.0 else elementary.log64(u) * (e / (u - 1.0))


@numba.njit(error_model="numpy")
def wanted(values: Array, plus_one: bool, out: Array) -> None:
    """The float32 results."""
    for i in range(values.shape[0]):
        out[i] = np.float32(in_float64(values[i], plus_one))


@numba.njit(error_model="numpy")
def near(values: Array, plus_one: bool, margin: int, out: Array) -> int:
    """Values whose float64 result is at most ``margin`` units from the middle of two float32; how many."""
    count = 0
    for i in range(values.shape[0]):
        low = elementary.bits_of64(np.float64(in_float64(values[i], plus_one))) & 0x1FFFFFFF
        if abs(low - 0x10000000) <= margin:
            out[count] = values[i]
            count += 1
    return count


@numba.njit(error_model="numpy")
def softplus(values: Array, out: Array) -> None:
    """Of the CPU."""
    for i in range(values.shape[0]):
        out[i] = elementary.softplus(values[i])


@kernel
def _kernel(x: Ptr, y: Ptr, count: int, WHICH: tl.constexpr, TILE: tl.constexpr) -> None:
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    value = tl.load(x + i, i < count, other=1.0)
    if WHICH == "log":
        result = narrow_log.log(value)
    elif WHICH == "log1p":
        result = narrow_log.log1p(value)
    else:
        result = narrow_log.softplus(value)
    tl.store(y + i, result, i < count)


def narrow(values: Array, which: str) -> Array:
    """What the kernels compute."""
    x = torch.from_numpy(values)
    y = torch.empty_like(x)
    tile = min(TILE, 1 << max(len(values) - 1, 1).bit_length())
    launch(_kernel, (ceil_div(len(values), tile),), x, y, len(values), WHICH=which, TILE=tile)
    return y.numpy()


def different(a: Array, b: Array) -> int:
    """Values with other bits; NaN is NaN."""
    return int(((a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))).sum())


def floats(first: int, end: int, step: int) -> Array:
    """Float32 by bit pattern."""
    return np.arange(first, end, step, dtype=np.uint32).view(np.float32)


def looked_at(which: str, everything: bool) -> tuple[int, int]:
    """How many values, and how many of them differ."""
    plus_one, end = which == "log1p", ENDS[which]
    margin, others = (1 << 17, 1009) if everything else (1 << 12, 1 << 17)
    starts = range(1, end, PART) if everything else (end // 2,)
    kept, found = [floats(0, end, others)], np.empty(PART, np.float32)
    for first in starts:
        values = floats(first, min(first + PART, end), 1)
        kept.append(found[: near(values, plus_one, margin, found)].copy())
    values = np.concatenate(kept)
    expected = np.empty_like(values)
    wanted(values[1:], plus_one, expected[1:])
    expected[0] = 0.0 if plus_one else -np.inf
    return len(values), different(narrow(values, which), expected)


def report(everything: bool) -> dict[str, Any]:
    """What is printed."""
    answer: dict[str, Any] = {"near": {which: looked_at(which, everything) for which in LISTED}}
    listed, kept = {}, narrow_log._moved
    for which, patterns in LISTED.items():
        values = np.array(patterns, np.uint32).view(np.float32)
        expected = np.empty_like(values)
        wanted(values, which == "log1p", expected)
        right = different(narrow(values, which), expected)
        narrow_log._moved = lambda y, up, down: y
        listed[which] = (right, different(narrow(values, which), expected))
        narrow_log._moved = kept
    edges = np.array([0, -0.0, 20, 20.000002, np.inf, np.nan], np.float32)
    whole = np.concatenate((floats(0, 1 << 32, 104_729), edges))
    expected = np.empty_like(whole)
    softplus(whole, expected)
    special = np.array([0, -0.0, -1, np.inf, -np.inf, np.nan, 1, 1e-45], np.float32)
    logs = np.array([-np.inf, -np.inf, np.nan, np.inf, np.nan, np.nan, 0, -103.27893], np.float32)
    answer["listed"] = listed
    answer["softplus"] = different(narrow(whole, "softplus"), expected)
    answer["special"] = different(narrow(special, "log"), logs)
    return answer


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's own, about infinities and NaN
    print(json.dumps(report(sys.argv[1:] == ["all"])))
