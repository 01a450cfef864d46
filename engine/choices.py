"""What a user may choose about a run, by name; ``engine.api`` hands these on."""

from __future__ import annotations

from enum import StrEnum


class Profile(StrEnum):
    """Arithmetic of activations (product.md section 4)."""

    STRICT = "strict"
    FAST = "fast"


class PrefillMode(StrEnum):
    """Which rows the decoder layers compute, and what their windows see (model.md section 10.2)."""

    OFF = "off"
    MASK = "mask"
    COMPACT = "compact"


class CacheFormat(StrEnum):
    """``released``: caches take the round trips of model.md section 8.6; ``none``: they stay exact."""

    RELEASED = "released"
    NONE = "none"


class Device(StrEnum):
    """Where a model runs; ``cuda`` is one NVIDIA device."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def kernel_set(self) -> str:
        """The batch-invariant kernels of the device."""
        return "triton" if self is Device.CUDA else "cpu"
