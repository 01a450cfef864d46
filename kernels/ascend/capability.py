"""What is documented of Ascend chips and of triton-ascend, and what follows for launches.

None of it was seen here: no such chip was at hand. Sources: the migration guide of triton-ascend (grids,
on-chip memory) and its support table of operations by type.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.kernels.gpu.launching import NPU_PROGRAMS

SEEN = "not run on hardware"


@dataclass(frozen=True, kw_only=True)
class AscendChip:
    """One generation of chips.

    Attributes:
        name: as ``torch_npu.npu.get_device_name`` begins.
        unified_buffer: bytes of on-chip memory of a vector core, which the values of a program share.
        max_programs: most programs of one launch; a grid of several axes counts as their product.
        keeps_roundings: whether the compiler leaves a multiply and an add two roundings; None is unknown, so
            bits of profile strict are the chip's own there until somebody has compared them.
    """

    name: str
    unified_buffer: int = 192 * 1024
    max_programs: int = NPU_PROGRAMS
    keeps_roundings: bool | None = None


CHIPS = tuple(AscendChip(name=name) for name in ("Ascend910B", "Ascend910_93", "Ascend950"))
"""Chips that triton-ascend compiles for; their limits are documented alike."""

UNSUPPORTED_TYPES = frozenset({"fp64", "uint8", "uint16", "uint32", "uint64", "fp8e4nv", "fp8e5"})
"""Types of values that no operation, or no load and store, of triton-ascend takes."""

UNSUPPORTED = frozenset({("where", "int64"), ("trans", "int64"), ("inline_asm", ""), ("sort", "")})
"""Operations that it does not have, for one type or at all."""

LARGEST_MOD = 2**24
"""Remainders of int64 are exact up to here only."""


def chip_of(device_name: str) -> AscendChip:
    """The record of a chip.

    Raises:
        ValueError: none that is known.
    """
    for chip in CHIPS:
        if device_name.startswith(chip.name):
            return chip
    known = ", ".join(chip.name for chip in CHIPS)
    raise ValueError(f"kernel set 'ascend' does not know chip {device_name!r}; it knows {known}")
