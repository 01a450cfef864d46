"""Names of platforms, and which facts moved between two runs.

The platform is part of the key: a readable name of what the bits are allowed to depend on. Everything else
that is in use is provenance, recorded and never part of the key: bytes are compared, and provenance explains
a difference.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path

PORTABLE = "portable"
"""Platform of bits that are the same on every machine."""

_VENDORS = {
    "AuthenticAMD": "amd",
    "GenuineIntel": "intel",
    "HygonGenuine": "hygon",
    "CentaurHauls": "zhaoxin",
}
_ARM_VENDORS = {"0x41": "arm", "0x43": "cavium", "0x48": "hisilicon", "0x61": "apple", "0xc0": "ampere"}


def cpu_vendor(cpuinfo: str | None = None) -> str:
    """Vendor of the processor in one word, from the text of ``/proc/cpuinfo``; else its architecture."""
    if cpuinfo is None:
        listing = Path("/proc/cpuinfo")
        cpuinfo = listing.read_text(encoding="utf-8", errors="replace") if listing.exists() else ""
    for pattern, names in (
        (r"^vendor_id\s*:\s*(\S+)", _VENDORS),
        (r"^CPU implementer\s*:\s*(\S+)", _ARM_VENDORS),
    ):
        if found := re.search(pattern, cpuinfo, re.MULTILINE):
            return names.get(found[1], _word(found[1]))
    return _word(platform.machine())


def cpu_platform(isa: str, vendor: str | None = None) -> str:
    """``cpu-amd-avx512``: vendor and the instruction set that is in use (not merely present)."""
    return f"cpu-{vendor or cpu_vendor()}-{_word(isa)}"


def cuda_platform(capability: tuple[int, int], device_name: str) -> str:
    """``cuda-sm90-h200``: compute capability and device model, without the vendor's decoration."""
    words = [_word(word) for word in device_name.split()]
    plain = [word for word in words if word not in {"nvidia", "geforce", "tesla", "quadro"}]
    return f"cuda-sm{capability[0]}{capability[1]}-{'-'.join(plain)}"


def moved_fields(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Provenance fields whose value changed, appeared or went, as name -> (then, now)."""
    names = sorted(then.keys() | now.keys())
    return {name: (then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)}


def describe_moved(moved: Mapping[str, tuple[str | None, str | None]]) -> str:
    """``torch 2.12.0 -> 2.13.0, threads 2 -> 8``; says so when nothing that is recorded moved."""
    if not moved:
        return "no recorded provenance moved"
    return ", ".join(f"{name} {_short(old)} -> {_short(new)}" for name, (old, new) in moved.items())


def _short(value: str | None) -> str:
    if value is None:
        return "absent"
    return value[:12] if re.fullmatch(r"[0-9a-f]{32,}", value) else value


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "unknown"
