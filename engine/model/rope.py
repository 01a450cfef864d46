"""Rotary tables from IEEE operations and decimal arithmetic alone: the same bits on every machine.

Frequencies and YaRN follow model.md section 3.4. The library functions pow, sin and cos differ between
machines in the last bit; here the power is a correctly rounded decimal one, and sine and cosine are float64
polynomials after a three-part reduction by pi/2, rounded to float32 at the end.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.model_config import YarnConfig
from deepinfer.kernels.operands import Rotary

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# pi/2 in three parts of 33, 33 and 53 bits: k times a part is exact for every k of a float32 angle below
# 2**20
_PI_2_A = float.fromhex("0x1.921fb544p+0")
_PI_2_B = float.fromhex("0x1.0b4611a6p-34")
_PI_2_C = float.fromhex("0x1.3198a2e037073p-69")
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_SIN = [(-1) ** i / math.factorial(2 * i + 1) for i in range(9)]
_COS = [(-1) ** i / math.factorial(2 * i) for i in range(10)]


def rope_frequencies(rotary_dim: int, base: float, yarn: YarnConfig | None) -> Float32:
    """Angles per position of each of the ``rotary_dim / 2`` channel pairs, float32, radians."""
    num_pairs = rotary_dim // 2
    with localcontext() as context:
        context.prec = 50
        powers = [Decimal(base) ** (Decimal(2 * i) / Decimal(rotary_dim)) for i in range(num_pairs)]
        frequencies = np.float32(1.0) / np.array([float(power) for power in powers], np.float32)
        if yarn is None:
            return frequencies
        ln_base = Decimal(base).ln()
        two_pi = Decimal("6.2831853071795864769252867665590057683943387987502")

        def correction(beta: float) -> Decimal:
            turns = Decimal(yarn.original_max_position_embeddings) / (Decimal(beta) * two_pi)
            return Decimal(rotary_dim) * turns.ln() / (2 * ln_base)

        low = max(math.floor(correction(yarn.beta_fast)), 0)
        high = min(math.ceil(correction(yarn.beta_slow)), rotary_dim - 1)
    span = np.float32(high - low if high != low else 0.001)
    ramp = np.clip((np.arange(num_pairs, dtype=np.float32) - np.float32(low)) / span, 0, 1).astype(np.float32)
    scaled = frequencies / np.float32(yarn.factor)
    mixed: Float32 = scaled * ramp + frequencies * (np.float32(1.0) - ramp)
    return mixed


def sin_cos(angles: Float32) -> tuple[Float32, Float32]:
    """Sine and cosine of float32 angles in [0, 2**20], each within 0.5001 ulp, portable to the bit."""
    x = angles.astype(np.float64)
    k = np.rint(x * _TWO_OVER_PI)
    r = ((x - k * _PI_2_A) - k * _PI_2_B) - k * _PI_2_C
    z = r * r
    sine, cosine = np.full_like(z, _SIN[-1]), np.full_like(z, _COS[-1])
    for coefficient in reversed(_SIN[:-1]):
        sine = sine * z + coefficient
    for coefficient in reversed(_COS[:-1]):
        cosine = cosine * z + coefficient
    sine = sine * r
    quadrant = k.astype(np.int64) & 3
    swap = (quadrant & 1) == 1
    sin = np.where(swap, cosine, sine) * np.where(quadrant >= 2, -1.0, 1.0)
    cos = np.where(swap, sine, cosine) * np.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0)
    return sin.astype(np.float32), cos.astype(np.float32)


class RopeTable:
    """Cosines and sines by position; grows as longer sequences come."""

    def __init__(self, frequencies: Float32, device: torch.device | None = None) -> None:
        """Start empty; ``frequencies`` [pairs] as ``rope_frequencies`` gives them.

        The table is computed on the host, where its bits are portable, and copied to ``device``.
        """
        self._frequencies, self._device = frequencies, device
        self.cos = torch.empty(0, len(frequencies), device=device)
        self.sin = torch.empty(0, len(frequencies), device=device)
        self._outgrown: list[tuple[torch.Tensor, torch.Tensor]] = []

    def reserve(self, num_positions: int) -> None:
        """Make rows 0 .. ``num_positions`` - 1 available.

        The angle is ``float32(position) * f`` in float32. Tables that were too short stay where they are:
        recorded steps read them.
        """
        if num_positions <= self.cos.shape[0]:
            return
        rows = max(num_positions, 2 * self.cos.shape[0], 256)
        angles = np.arange(rows, dtype=np.float32)[:, None] * self._frequencies[None]
        sin, cos = sin_cos(angles)
        self._outgrown.append((self.cos, self.sin))
        self.cos, self.sin = (torch.from_numpy(part).to(self._device) for part in (cos, sin))

    def at(self, positions: torch.Tensor) -> Rotary:
        """The table for rows at ``positions`` int64 [T]."""
        return Rotary(self.cos, self.sin, positions)
