"""Cache round trips in plain torch (model.md section 8); exact, so every kernel set must give these bytes."""

from __future__ import annotations

import torch

_E2M1_MAX, _E4M3_MAX = 6.0, 448.0
E2M1_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Value of each e2m1 code."""


def split(x: torch.Tensor, size: int) -> torch.Tensor:
    """[..., C] -> [..., C / size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def round_e2m1(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearest e2m1 value, ties to the even code, saturating at 6, and its magnitude code 0 .. 7 as float32.

    The values are spaced by half of the power of two below them, from 1 on: .5, then 1 from 2 and 2 from 4.
    """
    magnitude = x.abs().clamp_(max=_E2M1_MAX)
    exponent = magnitude.clamp(min=1.0).view(torch.int32) >> 23
    step = ((exponent - 1) << 23).view(torch.float32)
    steps = magnitude.div_(step).round_()
    code = steps + 2 * (exponent - 127)
    return torch.copysign(steps.mul_(step), x), code


def _ceil_pow2(v: torch.Tensor) -> torch.Tensor:
    """Smallest power of two that is at least ``v`` > 0, from the bit pattern (section 8.1)."""
    exponent = ((v.view(torch.int32) - 1) >> 23) + 1
    return (exponent << 23).view(torch.float32)


def mxfp8_scale(groups: torch.Tensor) -> torch.Tensor:
    """Power-of-two scales [..., G, 1] of groups [..., G, 32] (section 8.2)."""
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    return _ceil_pow2(amax * torch.tensor(1.0 / _E4M3_MAX, dtype=torch.float32))


def mxfp4_scale(groups: torch.Tensor) -> torch.Tensor:
    """Power-of-two scales [..., G, 1] of groups [..., G, 32] (section 8.3)."""
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=6.0 * 2.0**-126)
    return _ceil_pow2(amax * torch.tensor(1.0 / _E2M1_MAX, dtype=torch.float32))


def fp4_scale(groups: torch.Tensor) -> torch.Tensor:
    """Scales [..., G, 1] of groups [..., G, 16], rounded to e4m3 (section 8.4)."""
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=6.0 * 2.0**-9)
    return (amax / _E2M1_MAX).clamp(max=_E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)


def mxfp8(x: torch.Tensor) -> torch.Tensor:
    """Groups of 32, power-of-two scale, e4m3 codes: [..., C] -> [..., C]."""
    groups = split(x, 32)
    scale = mxfp8_scale(groups)
    return ((groups / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale).flatten(-2)


def mxfp4(x: torch.Tensor) -> torch.Tensor:
    """Groups of 32, power-of-two scale, e2m1 codes: [..., C] -> [..., C]."""
    groups = split(x, 32)
    scale = mxfp4_scale(groups)
    return (round_e2m1(groups / scale)[0] * scale).flatten(-2)


def fp4_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Groups of 16, e4m3 scale, e2m1 codes, by true division: [..., C] -> [..., C]."""
    groups = split(x, 16)
    scale = fp4_scale(groups)
    return (round_e2m1(groups / scale)[0] * scale).flatten(-2)
