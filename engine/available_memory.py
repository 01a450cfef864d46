"""Memory this process could still use: the estimate of the kernel, cut by the limits of its cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes this process can allocate before anything is killed; ``None`` if unknown.

    The smallest of ``MemAvailable`` and, for every cgroup (version 1 or 2) from the process up to the root,
    its limit minus its usage, where file cache counts as free. Where there is no ``/proc``, the physical
    memory.

    Args:
        proc: the proc file system, replaced in tests.
        cgroups: the cgroup file system, replaced in tests.
    """
    amounts = [*_meminfo(proc), *_cgroup_rooms(proc, cgroups)]
    if not amounts:
        amounts = [*_physical()]
    return max(min(amounts), 0) if amounts else None


def _meminfo(proc: Path) -> Iterator[int]:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _cgroup_rooms(proc: Path, cgroups: Path) -> Iterator[int]:
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            yield from _walk_up(cgroups, path, *names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _walk_up(cgroups / "memory", path, *names)


def _walk_up(root: Path, path: str, limit_name: str, usage_name: str, cache_key: str) -> Iterator[int]:
    """Rooms of the group at ``path`` and of each group above it, whose limits bind as well."""
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None:
            cache = [line.split() for line in _lines(folder / "memory.stat")]
            reclaimable = sum(int(entry[1]) for entry in cache if entry[0] == cache_key)
            yield limit - usage + reclaimable
        if folder == root:
            return


def _number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _physical() -> Iterator[int]:
    names = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    if all(name in os.sysconf_names for name in names):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
