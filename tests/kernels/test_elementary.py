"""Errors in ulp of the elementary functions, over every 509th float32, against float64 and mpmath.

The bounds are the measured maxima, rounded up in the third digit; docs/orders.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from deepinfer.engine.model.rope import sin_cos
from deepinfer.kernels.cpu import elementary
from deepinfer.kernels.cpu.compiled import kernel

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@kernel
def _exp(x: Float32, y: Float32) -> None:
    for i in range(x.shape[0]):
        y[i] = elementary.exp(x[i])


@kernel
def _log(x: Float32, y: Float32) -> None:
    for i in range(x.shape[0]):
        y[i] = elementary.log(x[i])


@kernel
def _sigmoid(x: Float32, y: Float32) -> None:
    for i in range(x.shape[0]):
        y[i] = elementary.sigmoid(x[i])


@kernel
def _silu(x: Float32, y: Float32) -> None:
    for i in range(x.shape[0]):
        y[i] = elementary.silu(x[i])


@kernel
def _softplus(x: Float32, y: Float32) -> None:
    for i in range(x.shape[0]):
        y[i] = elementary.softplus(x[i])


@kernel
def _rsqrt(x: Float32, y: Float32) -> None:
    for i in range(x.shape[0]):
        y[i] = elementary.rsqrt(x[i])


@kernel
def _to_bf16(x: Float32, y: Float32) -> None:
    for i in range(x.shape[0]):
        y[i] = elementary.to_bf16(x[i])


def every_float(step: int = 509) -> Float32:
    """Every ``step``-th bit pattern, infinities and NaN left out."""
    values = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return values[np.isfinite(values)]


def ulp_errors(got: Float32, want: Float64) -> Float64:
    """Distance in units of the last place of ``want``, subnormal spacing included."""
    with np.errstate(over="ignore"):
        spacing = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    inside = np.isfinite(spacing) & (np.abs(want) < 3.4e38)
    return np.where(inside, np.abs(got.astype(np.float64) - want) / spacing, 0.0)


CASES: list[
    tuple[str, Callable[[Float32, Float32], None], Callable[[Float64], Float64], float, float, float]
] = [
    ("exp", _exp, np.exp, -103.0, 88.7, 0.98),
    ("sigmoid", _sigmoid, lambda x: 1 / (1 + np.exp(-x)), -88.0, 88.0, 2.21),
    ("silu", _silu, lambda x: x / (1 + np.exp(-x)), -88.0, 3e38, 2.23),
    (
        "softplus",
        _softplus,
        lambda x: np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))),
        -87.0,
        3e38,
        1.41,
    ),
    ("log", _log, np.log, 1e-45, 3.4e38, 0.501),
    ("rsqrt", _rsqrt, lambda x: 1 / np.sqrt(x), 1e-45, 3.4e38, 1.48),
]


@pytest.mark.parametrize(
    ("name", "function", "exact", "low", "high", "bound"), CASES, ids=[c[0] for c in CASES]
)
def test_error_in_ulp(
    name: str,
    function: Callable[[Float32, Float32], None],
    exact: Callable[[Float64], Float64],
    low: float,
    high: float,
    bound: float,
) -> None:
    x = every_float()
    x = x[(x >= low) & (x <= high)]
    assert len(x) > 1e6
    y = np.empty_like(x)
    function(x, y)
    assert np.isfinite(y).all()
    worst = ulp_errors(y, exact(x.astype(np.float64))).max()
    print(f"{name}: {worst:.3f} ulp over {len(x)} values")
    assert worst <= bound


def test_special_values() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 89.0, -104.0], np.float32)
    y = np.empty_like(x)
    _exp(x, y)
    assert y[:2].tolist() == [np.inf, 0.0]
    assert np.isnan(y[2])
    assert y[3:].tolist() == [1.0, 1.0, np.inf, 0.0]
    _log(np.array([0.0, -1.0, np.inf, np.nan, 1.0, 1e-45, 1.0], np.float32), y)
    assert y[0] == -np.inf
    assert np.isnan(y[1])
    assert y[2] == np.inf
    assert np.isnan(y[3])
    assert y[4] == 0.0
    assert y[5] == np.float32(np.log(float(np.float32(1e-45))))


def test_bfloat16_rounding_is_torchs() -> None:
    import torch

    x = every_float(4093)
    y = np.empty_like(x)
    _to_bf16(x, y)
    want = torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy()
    assert np.array_equal(y.view(np.uint32), want.view(np.uint32))


def test_sine_and_cosine_are_nearly_correctly_rounded() -> None:
    generator = np.random.default_rng(5)
    angles = np.concatenate(
        [generator.uniform(0, 8, 400), generator.uniform(0, 2.0**20, 600), np.arange(0, 200) * (np.pi / 4)]
    ).astype(np.float32)
    sine, cosine = sin_cos(angles)
    with mpmath.workdps(40):
        for got, function in ((sine, mpmath.sin), (cosine, mpmath.cos)):
            for angle, value in zip(angles.tolist(), got.tolist(), strict=True):
                want = function(mpmath.mpf(angle))
                spacing = float(np.spacing(np.float32(abs(float(want)) or 1e-45)))
                assert abs(mpmath.mpf(value) - want) <= 0.5001 * spacing, angle


def test_a_polynomial_that_is_off_by_little_is_noticed() -> None:
    """Negative control: e**x with the last coefficient dropped."""
    x = every_float()
    x = x[(x >= -103) & (x <= 88.7)]
    spoiled = np.exp(x.astype(np.float64)) * (1 + 3e-7)
    assert ulp_errors(spoiled.astype(np.float32), np.exp(x.astype(np.float64))).max() > 1.0
