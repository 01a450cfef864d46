"""Launch shapes by chip: buckets of rows only where their bits were seen to be equal."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")


@pytest.mark.parametrize("major", [8, 10, 12])
def test_an_untested_chip_has_one_launch_shape_for_any_number_of_rows(major: int) -> None:
    from deepinfer.kernels.gpu.capability import capability_of
    from deepinfer.kernels.gpu.gemm_tiles import plan

    capability = capability_of(major)
    assert "untested" in capability.seen
    for shape in ((1280, 5120), (512, 5120), (72, 20480), (24, 256)):
        assert len(set(plan(*shape, capability.buckets).tiles)) == 1


def test_the_measured_chip_has_buckets_and_one_chunk_for_all_of_them() -> None:
    from deepinfer.kernels.gpu.capability import capability_of
    from deepinfer.kernels.gpu.gemm import Tile
    from deepinfer.kernels.gpu.gemm_tiles import plan

    assert capability_of(9).buckets
    for outputs, inputs in ((1280, 5120), (512, 5120), (5120, 8192), (72, 20480), (24, 256), (40, 130)):
        found = plan(outputs, inputs)
        assert found.chunk % 128 == 0
        wide = [tile for tile in found.tiles if not isinstance(tile, Tile)]
        assert not wide or found.chunk >= inputs, "wide tiles sum over all of K at once"


@pytest.mark.parametrize(("major", "native"), [(9, False), (10, True)])
def test_experts_are_packed_as_the_chip_multiplies_them(
    major: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepinfer.kernels.gpu import fast_experts
    from deepinfer.kernels.gpu.capability import capability_of
    from deepinfer.kernels.gpu.native_experts import NativeExperts

    monkeypatch.setattr(fast_experts, "capability_at", lambda place: capability_of(major))
    weights = tuple(torch.arange(64.0).view(-1, inputs) % 3 for inputs in (32, 32, 32))
    packed = fast_experts.pack_experts(2, lambda _: weights, torch.device("cpu"))
    assert isinstance(packed, NativeExperts if native else fast_experts.RoutedExperts)
    if isinstance(packed, NativeExperts):
        assert packed.inner.codes.shape == (2, 4, 64)  # gate over up; 32 channels filled up to a step
        assert packed.down.scales.shape == (2, 2, 4)


def test_a_chip_without_bfloat16_products_is_refused() -> None:
    from deepinfer.kernels.gpu.capability import capability_of

    with pytest.raises(ValueError, match=r"8\.0 or newer"):
        capability_of(7)
