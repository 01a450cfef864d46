"""Which kind of file system a folder lies on, as far as locks are concerned."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

_LOCAL = frozenset("ext2 ext3 ext4 xfs btrfs zfs f2fs tmpfs ramfs overlay bcachefs jfs apfs".split())
_SMB = frozenset({"cifs", "smb3", "smbfs"})


class MountKind(StrEnum):
    """What may be trusted on a mount, before it is probed."""

    LOCAL = "local"
    SMB = "smb"
    SHARED = "shared"


def file_system_of(folder: Path) -> str:
    """Type of the file system that holds ``folder`` or its nearest existing parent; empty where unknown."""
    listing = Path("/proc/self/mountinfo")
    place = Path(os.path.realpath(folder))
    if not listing.exists():
        return ""
    found = (-1, "")
    for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")  # blanks are written as \040
        if place.is_relative_to(point):
            found = max(found, (len(point), right.split()[0]), key=lambda item: item[0])
    return found[1]


def mount_kind(folder: Path) -> MountKind:
    """Local disk, SMB, or anything else, which is treated like NFS: unknown is never trusted."""
    name = file_system_of(folder)
    if name in _LOCAL:
        return MountKind.LOCAL
    return MountKind.SMB if name in _SMB else MountKind.SHARED
