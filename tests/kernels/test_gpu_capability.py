"""Launch shapes by chip: buckets of rows only where their bits were seen to be equal."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

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


def test_a_chip_without_bfloat16_products_is_refused() -> None:
    from deepinfer.kernels.gpu.capability import capability_of

    with pytest.raises(ValueError, match=r"8\.0 or newer"):
        capability_of(7)
