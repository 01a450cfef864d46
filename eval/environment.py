"""What a run was made with: recorded beside the rows, never part of the question."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("deepinfer", "torch", "numpy", "numba", "tokenizers", "pyarrow")


def describe_environment() -> dict[str, Any]:
    """Versions and machine as JSON values; reads package metadata only, so nothing heavy is imported."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
    """Name of the processor, where the system tells it, else of its architecture."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
