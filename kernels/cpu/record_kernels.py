"""Kernels behind the packed cache records: quantise, decode and copy rows (model.md section 8).

Legend: T rows, W channels of a row in G groups, d data bytes of a record. ``data`` and ``scales`` are flat
byte ranges, and ``layout`` int64 [6] tells where records lie in them: number of blocks, records of a block,
then the bytes from block to block and from record to record, of the data and of the scales. All buffers thus
have one type, and a kernel is compiled once. Kernels take rows ``low`` to ``high``, skip those numbered -1
and return how many others name no record; nothing is written for these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.block_codes import (
    code_e4m3,
    fp4_scale,
    mxfp4_exponent,
    mxfp8_exponent,
    power,
    signed_e2m1,
    signed_e4m3,
)
from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import bits_of, float_of
from deepinfer.kernels.cpu.group_decode import make_e2m1_decode, make_e4m3_decode

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

MXFP8, MXFP4, FP4_E4M3, EXACT = 0, 1, 2, 3
Place = tuple[Bytes, Bytes, Int64, Float32, int, int, int]
"""Records of any format: data, scales, layout, values of scales; format, channels of a group, of a record."""
DATA, SCALES = 2, 4
"""Where the two strides of each part begin in ``layout``."""
_INFINITY, _NO_SIGN = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
_decode_mxfp8 = make_e4m3_decode(32)
_decode_mxfp4 = make_e2m1_decode(32)
_decode_fp4 = make_e2m1_decode(16)


@inlined
def _largest_bits(groups: Float32, t: int, g: int) -> np.int32:
    """Bit pattern of the largest magnitude of a group.

    Patterns order as the magnitudes do, NaN above infinity, and an integer maximum vectorises.
    """
    bits = np.int32(0)
    for i in range(groups.shape[2]):
        bits = max(bits, bits_of(groups[t, g, i]) & _NO_SIGN)
    return np.int32(bits)


@inlined
def _offset(row: np.int64, layout: Int64, strides: int) -> np.int64:
    """Byte where record ``row`` begins; -1 if there is no such record."""
    block, slot = row // layout[1], row % layout[1]
    if row < 0 or block >= layout[0]:
        return np.int64(-1)
    return np.int64(block * layout[strides] + slot * layout[strides + 1])


@kernel
def store_kernel(
    values: Float32,
    groups: Float32,
    data: Bytes,
    scales: Bytes,
    layout: Int64,
    rows: Int64,
    kind: int,
    low: int,
    high: int,
) -> int:
    """Quantise values [T, W], also seen as groups [T, G, group], into their records.

    A group that holds NaN or infinity gets the NaN scale, so that it is read back as NaN, never as a number.
    Whole rows go through each step: loops over a group are too short for vectors to pay.
    """
    width = values.shape[1]
    divisors = np.empty(width, np.float32)
    codes = np.empty(width, np.uint8)
    num_outside = 0
    for t in range(low, high):
        first = _offset(rows[t], layout, DATA)
        if first < 0:
            num_outside += rows[t] != -1
            continue
        data_at, scales_at = np.uint64(first), np.uint64(_offset(rows[t], layout, SCALES))
        c = 0
        for g in range(groups.shape[1]):
            bits = _largest_bits(groups, t, g)
            if kind == FP4_E4M3:
                scale = fp4_scale(float_of(bits))
                byte = code_e4m3(scale) if bits < _INFINITY else np.int32(127)
            else:
                amax = float_of(bits)
                exponent = mxfp8_exponent(amax) if kind == MXFP8 else mxfp4_exponent(amax)
                scale = power(exponent)
                byte = exponent if bits < _INFINITY else np.int32(255)
            scales[scales_at + np.uint64(g)] = byte
            for _ in range(groups.shape[2]):
                divisors[c] = scale
                c += 1
        # Dividing by a power of two and multiplying by its inverse round alike.
        if kind == MXFP8:
            for c in range(width):
                codes[c] = signed_e4m3(values[t, c], values[t, c] / divisors[c])
            for i in range(width):
                data[data_at + np.uint64(i)] = codes[i]
        else:
            for c in range(width):
                codes[c] = signed_e2m1(values[t, c], values[t, c] / divisors[c])
            for i in range(width // 2):
                data[data_at + np.uint64(i)] = codes[2 * i] | (codes[2 * i + 1] << np.uint8(4))
    return num_outside


@kernel
def load_kernel(
    data: Bytes,
    scales: Bytes,
    layout: Int64,
    scale_values: Float32,
    rows: Int64,
    groups: Float32,
    kind: int,
    low: int,
    high: int,
) -> int:
    """Decode records into groups [T, G, group]; zeros for row -1."""
    _, num_groups, group = groups.shape
    group_bytes = group if kind == MXFP8 else group // 2
    num_outside = 0
    for t in range(low, high):
        first = _offset(rows[t], layout, DATA)
        if first < 0:
            num_outside += rows[t] != -1
            for g in range(num_groups):
                for i in range(group):
                    groups[t, g, i] = np.float32(0.0)
            continue
        scales_at = np.uint64(_offset(rows[t], layout, SCALES))
        source = np.int64(data.ctypes.data) + first
        target = np.int64(groups.ctypes.data) + np.int64(t) * num_groups * group * 4
        for g in range(num_groups):
            scale = scale_values[scales[scales_at + np.uint64(g)]]
            if kind == MXFP8:
                _decode_mxfp8(source, target, scale)
            elif kind == MXFP4:
                _decode_mxfp4(source, target, scale)
            else:
                _decode_fp4(source, target, scale)
            source += group_bytes
            target += group * 4
    return num_outside


@kernel
def copy_kernel(raw: Bytes, data: Bytes, layout: Int64, rows: Int64, store: bool, low: int, high: int) -> int:
    """Copy rows of ``raw`` [T, d] into their records, or records into rows; then zeros for row -1."""
    num_outside = 0
    for t in range(low, high):
        first = _offset(rows[t], layout, DATA)
        at = np.uint64(first if first >= 0 else 0)
        if first < 0:
            num_outside += rows[t] != -1
            if not store:
                for i in range(raw.shape[1]):
                    raw[t, i] = np.uint8(0)
        elif store:
            for i in range(raw.shape[1]):
                data[at + np.uint64(i)] = raw[t, i]
        else:
            for i in range(raw.shape[1]):
                raw[t, i] = data[at + np.uint64(i)]
    return num_outside


@inlined
def load_place(place: Place, rows: Int64) -> tuple[Float32, int]:
    """Records ``rows`` [T] decoded to [T, W]; how many rows are neither -1 nor a record."""
    data, scales, layout, scale_values, kind, group, width = place
    out = np.empty((len(rows), width), np.float32)
    if kind == EXACT:
        return out, copy_kernel(out.view(np.uint8), data, layout, rows, False, 0, len(rows))
    groups = out.reshape(len(rows), width // group, group)
    return out, load_kernel(data, scales, layout, scale_values, rows, groups, kind, 0, len(rows))


@inlined
def store_place(place: Place, values: Float32, rows: Int64, low: int, high: int) -> int:
    """Rows ``low .. high`` of values [T, W] into their records; how many rows are neither -1 nor a record."""
    data, scales, layout, _, kind, group, width = place
    if kind == EXACT:
        return copy_kernel(values.view(np.uint8), data, layout, rows, True, low, high)
    groups = values.reshape(len(rows), width // group, group)
    return store_kernel(values, groups, data, scales, layout, rows, kind, low, high)
