"""Files that exist whole or not at all: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepinfer.engine.errors import RunError

TEMPORARY_PREFIX = ".partial-"


def publish_bytes(path: Path, content: bytes) -> None:
    """Make ``content`` appear under ``path`` in one step; a kill leaves the old state or the new.

    Raises:
        RunError: the folder is read-only, the disk is full, or the system fails otherwise; nothing appears.
    """
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    with removed_on_failure(temporary):
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        rename_durably(temporary, path)


@contextmanager
def removed_on_failure(temporary: Path) -> Iterator[None]:
    """Turn a system failure inside the block into one line, and remove the half-written file."""
    try:
        yield
    except OSError as error:
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            pass  # a read-only or vanished folder: the first failure is the one to tell
        raise RunError(
            f"{temporary.parent}: cannot write there ({error.strerror or error}); "
            "free space or choose another folder, then run the same command again"
        ) from error


def rename_durably(temporary: Path, path: Path) -> None:
    """Give a finished, synced file its name, and make the name itself survive a power cut."""
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def canonical_json(value: Any) -> bytes:
    """The one JSON form of a value that digests are taken over: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(content: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(content).hexdigest()


def publish_json(path: Path, members: dict[str, Any]) -> None:
    """Publish a JSON object with its own digest beside the members, so that every flipped bit is found."""
    sealed = {**members, "sha256_of_the_rest": digest_of(canonical_json(members))}
    publish_bytes(path, json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Read what :func:`publish_json` wrote.

    Raises:
        RunError: unreadable, not such an object, or changed since it was written.
    """
    try:
        members = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the run folder") from error
    except ValueError:
        raise RunError(f"{path}: is not JSON; the file is damaged, run into a new folder") from None
    seal = members.pop("sha256_of_the_rest", None) if isinstance(members, dict) else None
    if seal is None or seal != digest_of(canonical_json(members)):
        raise RunError(f"{path}: changed since it was written (digest mismatch); run into a new folder")
    checked: dict[str, Any] = members
    return checked
