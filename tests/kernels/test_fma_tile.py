"""The tile is one fma chain per output, whatever its shape: bit for bit against exact rationals."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.fma_tile import make_tile
from deepinfer.kernels.cpu.key_tile import make_key_tile

Float32 = npt.NDArray[np.float32]
SHAPES = [(1, 2, 8), (6, 2, 8), (12, 2, 16), (12, 1, 4), (4, 2, 8), (1, 1, 4)]


def rounded(value: Fraction) -> Fraction:
    """Nearest float32 of an exact value, ties to even, away from the limits of the format."""
    if value == 0:
        return value
    exponent = abs(value).numerator.bit_length() - abs(value).denominator.bit_length()
    quantum = Fraction(2) ** (exponent - 23)
    for _ in range(2):
        quotient = value / quantum
        whole = quotient.numerator // quotient.denominator
        rest = quotient - whole
        if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
            whole += 1
        if abs(whole) >= 2**24:
            quantum *= 2
        elif abs(whole) < 2**23:
            quantum /= 2
        else:
            return whole * quantum
    return whole * quantum


def exact_chain(a: Float32, b: Float32) -> float:
    total = Fraction(0)
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        total = rounded(Fraction(x) * Fraction(y) + total)
    return float(total)


def runner(rows: int, vectors: int, lanes: int, gathered: bool) -> Callable[[Float32, Float32], Float32]:
    """Compile a tile of this shape into a function of ``a`` [rows, K] and ``b`` [K, columns]."""
    tile = make_tile(rows, vectors, lanes, gathered)

    @kernel
    def run(a: Float32, b: Float32, out: Float32) -> None:
        addresses = np.empty(a.shape[0], np.int64)
        for r in range(a.shape[0]):
            addresses[r] = np.int64(a.ctypes.data) + r * a.shape[1] * 4
        places = np.empty(b.shape[0], np.int64)
        for k in range(b.shape[0]):
            places[k] = np.int64(b.ctypes.data) + k * b.shape[1] * 4
        table, target = np.int64(addresses.ctypes.data), np.int64(out.ctypes.data)
        if gathered:
            tile(table, np.int64(places.ctypes.data), 0, b.shape[0], target, out.shape[1])
        else:
            tile(table, np.int64(b.ctypes.data), b.shape[1], b.shape[0], target, out.shape[1])

    def call(a: Float32, b: Float32) -> Float32:
        out = np.full((rows, vectors * lanes), np.nan, np.float32)
        run(a, b, out)
        return out

    return call


@pytest.mark.parametrize("gathered", [False, True], ids=["panel", "gathered"])
@pytest.mark.parametrize(("rows", "vectors", "lanes"), SHAPES)
def test_every_shape_is_the_exact_chain(rows: int, vectors: int, lanes: int, gathered: bool) -> None:
    generator = np.random.default_rng(7)
    a = generator.standard_normal((rows, 40)).astype(np.float32)
    b = generator.standard_normal((40, vectors * lanes)).astype(np.float32)
    got = runner(rows, vectors, lanes, gathered)(a, b)
    for r in range(rows):
        for n in range(vectors * lanes):
            assert got[r, n] == exact_chain(a[r], b[:, n])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("rows", "panels"), [(1, 4), (3, 2), (6, 1)])
def test_several_panels_and_halves_are_the_same_chains(rows: int, panels: int, half: bool) -> None:
    generator = np.random.default_rng(8)
    a = generator.standard_normal((rows, 30)).astype(np.float32)
    b = generator.standard_normal((panels, 30, 16)).astype(np.float32)
    upper = (b.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if half:
        b = (upper.astype(np.uint32) << np.uint32(16)).view(np.float32)
    stored = upper.reshape(panels, 30, 2, 8).swapaxes(2, 3).copy() if half else b
    tile = make_tile(rows, 2, 8, num_panels=panels, half=half)

    @kernel
    def run(addresses: npt.NDArray[np.int64], b: npt.NDArray[np.generic], out: Float32) -> None:
        table, place = np.int64(addresses.ctypes.data), np.int64(out.ctypes.data)
        tile(table, np.int64(b.ctypes.data), 16, b.shape[1], place, out.shape[1])

    out = np.full((rows, panels * 16), np.nan, np.float32)
    run(np.array([row.ctypes.data for row in a], np.int64), stored, out)
    for r in range(rows):
        for n in range(panels * 16):
            assert out[r, n] == exact_chain(a[r], b[n // 16, :, n % 16])


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("heads", [1, 4])
def test_keys_that_lie_anywhere_are_the_same_chains(lanes: int, heads: int) -> None:
    generator = np.random.default_rng(9)
    q = generator.standard_normal((heads, 48)).astype(np.float32)
    pool = generator.standard_normal((70, 48)).astype(np.float32)
    chosen = generator.permutation(70)[:lanes]
    tile = make_key_tile(heads, lanes)

    @kernel
    def run(keys: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], width: int, out: Float32) -> None:
        table, place = np.int64(keys.ctypes.data), np.int64(out.ctypes.data)
        tile(table, np.int64(rows.ctypes.data), width, place, out.shape[1])

    out = np.full((heads, lanes + 1), np.nan, np.float32)
    keys = np.array([pool[number].ctypes.data for number in chosen], np.int64)
    run(keys, np.array([row.ctypes.data for row in q], np.int64), 48, out)
    for h in range(heads):
        for j in range(lanes):
            assert out[h, j] == exact_chain(q[h], pool[chosen[j]])
    assert np.isnan(out[:, lanes]).all()


def test_an_empty_sum_is_zero() -> None:
    got = runner(6, 2, 8, False)(np.empty((6, 0), np.float32), np.empty((0, 16), np.float32))
    assert not got.any()


def test_separate_rounding_would_be_noticed() -> None:
    """Negative control: multiply and add rounded apart give other bits somewhere in sixteen sums."""
    generator = np.random.default_rng(7)
    a, b = (
        generator.standard_normal((16, 40)).astype(np.float32),
        generator.standard_normal(40).astype(np.float32),
    )
    totals = np.zeros(16, np.float32)
    for k in range(40):
        totals = totals + a[:, k] * b[k]
    assert any(float(total) != exact_chain(row, b) for total, row in zip(totals, a, strict=True))
