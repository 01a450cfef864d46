"""Experts held as codes: the weights that were packed, and the bits of experts held in more bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deepinfer.kernels.cpu import packed_experts
from deepinfer.kernels.cpu.code_tile import GROUP, MAGNITUDES, TAKES_CODES
from deepinfer.kernels.cpu.linear import panels_of
from deepinfer.kernels.cpu.packed_experts import PackedExperts, coded, decoded
from deepinfer.kernels.dispatch import select_ops

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
needs_codes = pytest.mark.skipif(not TAKES_CODES, reason="no 512-bit vectors here")


def fp4(seed: int, *shape: int, low: int = -9, high: int = -3) -> torch.Tensor:
    """Weights that e2m1 codes and a power of two for 32 inputs hold, signed zeros among them."""
    generator = np.random.default_rng(seed)
    values = np.array([*MAGNITUDES, *(-value for value in MAGNITUDES)], np.float32)
    scales = generator.integers(low, high, (*shape[:-1], shape[-1] // GROUP))
    scales[..., 0, 0] = low
    weights = values[generator.integers(0, 16, shape)]
    weights[..., 1, :GROUP] = 0.0  # a group without any value
    weights[..., 2, :GROUP] = 0.5
    return torch.from_numpy(np.ldexp(weights, scales.repeat(GROUP, -1)).astype(np.float32))


@pytest.mark.parametrize(("low", "high"), [(-9, -3), (-124, -100), (100, 125)])
def test_codes_give_back_the_weights(low: int, high: int) -> None:
    panels = panels_of(fp4(1, 1, 100, 96, low=low, high=high).numpy())[0]
    codes = coded(panels)
    assert codes is not None
    assert decoded(codes, 96).tobytes() == panels.tobytes()


@pytest.mark.parametrize("value", [0.3, float("nan"), float("inf"), 2.0**-127, 7.0])
def test_other_weights_have_no_codes(value: float) -> None:
    weights = fp4(2, 1, 40, 64, low=0, high=1)
    weights[0, 5, 40:] = 0.0
    weights[0, 5, 40] = value
    weights[0, 5, 41] = 1.0 if value == 7.0 else 0.0
    assert coded(panels_of(weights.numpy())[0]) is None
    assert coded(panels_of(fp4(2, 1, 40, 64)[..., :40].numpy())[0]) is None, "no whole groups"


def packed(parts: list[Weights], monkeypatch: pytest.MonkeyPatch, as_codes: bool) -> PackedExperts:
    with monkeypatch.context() as patch:
        patch.setattr(packed_experts, "TAKES_CODES", as_codes)
        return packed_experts.pack_experts(len(parts), parts.__getitem__)


def parts_of(num_experts: int, width: int, inner: int) -> list[Weights]:
    return [
        (fp4(3 * e, inner, width), fp4(3 * e + 1, inner, width), fp4(3 * e + 2, width, inner))
        for e in range(num_experts)
    ]


@needs_codes
@pytest.mark.parametrize(("width", "inner"), [(256, 128), (96, 160)])
@pytest.mark.parametrize("profile", ["strict", "fast"])
def test_bits_are_those_of_bfloat16(
    profile: str, width: int, inner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = select_ops("cpu", bf16=profile == "fast", round_caches=True, num_threads=2)
    parts = parts_of(4, width, inner)
    codes, halves = (packed(parts, monkeypatch, as_codes) for as_codes in (True, False))
    assert codes.gate.panels.dtype == np.uint8
    assert halves.gate.panels.dtype == np.uint16
    assert codes.cost == halves.cost
    generator = torch.Generator().manual_seed(5)
    for rows in (*range(1, 15), 19, 60, 230):
        x = torch.randn(rows, width, generator=generator)
        ids = torch.rand(rows, 4, generator=generator).argsort(1)[:, :2].sort(1).values
        shares = torch.rand(rows, 2, generator=generator)
        found = [ops.moe(x, ids, shares, experts, experts, 10.0) for experts in (codes, halves)]
        assert found[0].numpy().tobytes() == found[1].numpy().tobytes(), f"{rows} rows"


@needs_codes
@pytest.mark.parametrize("other", [0.3, 1 + 2.0**-10], ids=["rounded", "longer"])
@pytest.mark.parametrize("place", [0, 2])
def test_one_expert_without_codes_changes_how_all_are_held(
    other: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no bit of the others."""
    parts = parts_of(3, 64, 64)
    value = torch.tensor(other).bfloat16().float() if other == 0.3 else torch.tensor(other)
    parts[place][1][7, 9] = value
    mixed, wanted = (packed(parts, monkeypatch, as_codes) for as_codes in (True, False))
    assert mixed.gate.panels.dtype == np.uint8
    assert mixed.up.panels.dtype == (np.uint16 if other == 0.3 else np.float32)
    assert mixed.up.panels.tobytes() == wanted.up.panels.tobytes()
