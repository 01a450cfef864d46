"""Packed cache records in plain torch (model.md section 8).

Exact, so every kernel set must give these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.kernels.reference import fake_quant

_GROUPS = {"mxfp8": 32, "mxfp4": 32, "fp4": 16}


@dataclass(frozen=True)
class Records:
    """Buffers as ``Ops.bind_records`` takes them."""

    kind: str
    width: int
    data: torch.Tensor
    scales: torch.Tensor


def store(where: Records, values: torch.Tensor, rows: torch.Tensor) -> None:
    """See ``Ops.store_records``."""
    data = where.data
    _check(rows, data)
    kept = rows >= 0
    at = (rows[kept] // data.shape[1], rows[kept] % data.shape[1])
    codes, scale_bytes = _quantise(where.kind, values[kept])
    data[at] = codes
    where.scales[at] = scale_bytes


def load(where: Records, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """See ``Ops.load_records``."""
    data = where.data
    _check(rows, data)
    kept = rows >= 0
    at = (rows[kept] // data.shape[1], rows[kept] % data.shape[1])
    out = torch.empty(rows.shape[0], where.width) if out is None else out
    out[~kept] = 0.0
    out[kept] = _dequantise(where.kind, data[at], where.scales[at])
    return out


def _check(rows: torch.Tensor, data: torch.Tensor) -> None:
    num_records = data.shape[0] * data.shape[1]
    num_outside = int(((rows < -1) | (rows >= num_records)).sum())
    if num_outside:
        raise ValueError(f"records: {num_outside} rows are neither -1 nor one of the {num_records} records")


def _quantise(kind: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, W] -> data bytes [T, d] and scale bytes [T, s]; a group that is not finite gets the NaN scale."""
    if kind == "exact":
        return x.contiguous().view(torch.uint8), torch.empty(x.shape[0], 0, dtype=torch.uint8)
    groups = fake_quant.split(x, _GROUPS[kind])
    broken = ~groups.isfinite().all(-1)
    if kind == "fp4":
        scale = fake_quant.fp4_scale(groups)
        scale_bytes = scale.to(torch.float8_e4m3fn).view(torch.uint8)[..., 0].masked_fill(broken, 127)
    else:
        scale = fake_quant.mxfp8_scale(groups) if kind == "mxfp8" else fake_quant.mxfp4_scale(groups)
        exponent = scale.view(torch.int32)[..., 0] >> 23
        scale_bytes = exponent.to(torch.uint8).masked_fill(broken, 255)
    if kind == "mxfp8":
        return (groups / scale).to(torch.float8_e4m3fn).view(torch.uint8).flatten(1), scale_bytes
    scaled = groups / scale
    codes = fake_quant.round_e2m1(scaled)[1].add_(scaled.signbit(), alpha=8).to(torch.uint8).flatten(1)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scale_bytes


def _dequantise(kind: str, data: torch.Tensor, scale_bytes: torch.Tensor) -> torch.Tensor:
    """Data bytes [n, d] and scale bytes [n, s] -> [n, W]."""
    if kind == "exact":
        return data.contiguous().view(torch.float32)
    if kind == "fp4":
        scale = scale_bytes.view(torch.float8_e4m3fn).to(torch.float32)
    else:
        bits = (scale_bytes.to(torch.int32) << 23).clamp(min=1 << 22)  # byte 0 is the subnormal 2**-127
        scale = bits.view(torch.float32).masked_fill(scale_bytes == 255, torch.nan)
    if kind == "mxfp8":
        codes = data.view(torch.float8_e4m3fn).to(torch.float32)
    else:
        codes = fake_quant.E2M1_VALUES[torch.stack((data & 15, data >> 4), -1).flatten(1).to(torch.int64)]
    return (fake_quant.split(codes, _GROUPS[kind]) * scale[..., None]).flatten(1)
