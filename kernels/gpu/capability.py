"""What is known of a chip, and what follows for launches: a table by compute capability.

On a chip where nobody has seen that launch shapes of different row counts give equal bits, there is one
shape for all row counts, small enough for any of them: slow, and right by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One generation of chips.

    Attributes:
        name: as documents call it.
        matrix: the instruction that Triton makes of a bf16 product with 64 or more left rows.
        buckets: whether launch shapes may follow the number of rows; only where the device script ran.
        native_fp4: whether routed experts are multiplied in FP4 (``native_experts``) and not decoded first.
        seen: what was run on it, for documents and reports.
    """

    name: str
    matrix: str
    buckets: bool
    native_fp4: bool = False
    seen: str


_TABLE = {
    8: Capability(name="SM80", matrix="mma.sync", buckets=False, seen="untested; kernels compile"),
    9: Capability(name="SM90", matrix="wgmma", buckets=True, seen="H200"),
    10: Capability(
        name="SM100",
        matrix="tcgen05.mma",
        buckets=False,
        native_fp4=True,
        seen="untested; kernels compile",
    ),
}
_OLDEST = 8


def capability_of(major: int) -> Capability:
    """The record of a compute capability's first number.

    Raises:
        ValueError: older than 8, which has no bfloat16 products.
    """
    if major < _OLDEST:
        raise ValueError(
            f"kernel set 'triton' needs compute capability 8.0 or newer; this chip has {major}.x"
        )
    newer = Capability(name=f"SM{major}0", matrix="unknown", buckets=False, seen="untested")
    return _TABLE.get(major, newer)


def capability_at(place: torch.device) -> Capability:
    """Of the chip that tensors at ``place`` lie on; the interpreter, on a CPU, stands for SM90."""
    return capability_of(torch.cuda.get_device_capability(place)[0] if place.type == "cuda" else 9)


def has_wgmma(place: torch.device) -> bool:
    """Whether kernels written for Hopper's warp groups run there."""
    return place.type == "cuda" and capability_at(place).matrix == "wgmma"


def multiprocessors(place: torch.device) -> int:
    """Of the chip; 132, as an H200 has, where there is none."""
    return torch.cuda.get_device_properties(place).multi_processor_count if place.type == "cuda" else 132
