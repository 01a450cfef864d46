"""Every system call that a store makes, in one place.

The protocol needs three things of a file system: a file that was synced stays, a hard link (or an exclusive
create) onto a name that exists fails, and a rename replaces in one step. Tests put faults between any two
calls.
"""

from __future__ import annotations

import errno
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


class Disk:
    """The real system. A subclass that overrides `before` sees, fails or ends every step."""

    def before(self, step: str, path: Path) -> None:
        """Called ahead of every system call, named ``step``, that touches ``path``."""

    def host(self) -> str:
        """Name of this machine in lock and ledger records."""
        return socket.gethostname()

    def read(self, path: Path) -> bytes:
        """Whole content of a file; a stale handle is opened afresh once."""
        self.before("read", path)
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return path.read_bytes()

    def names(self, folder: Path) -> list[str]:
        """Sorted names in a folder; none when it does not exist."""
        self.before("list", folder)
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its parents; make the new name itself durable."""
        if not folder.is_dir():
            self.before("mkdir", folder)
            folder.mkdir(parents=True, exist_ok=True)
            self.sync_folder(folder.parent)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder survive a power cut."""
        self.before("sync_folder", folder)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish(self, path: Path, content: bytes, temporary_folder: Path) -> bool:
        """Make ``content`` appear under ``path`` if and only if nothing is there yet.

        Written aside, synced, reopened and compared, then linked: no reader ever sees a part of it.

        Returns:
            False when the name was taken by another content; nothing changed then.

        Raises:
            OSError: the system failed; nothing appeared, or the whole content did.
        """
        temporary = self.write_aside(temporary_folder, path.name, content)
        try:
            self.before("link", path)
            try:
                os.link(temporary, path)
            except FileExistsError:
                # A network file system may repeat a link that worked: the content tells whose it is. One that
                # caches names may not show yet what it refuses to overwrite: then it is not ours.
                try:
                    return self.read(path) == content
                except FileNotFoundError:
                    return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return self._create_exclusive(path, content)
        finally:
            with suppress(OSError):
                temporary.unlink()
        self.sync_folder(path.parent)
        return True

    def replace(self, path: Path, content: bytes, temporary_folder: Path) -> None:
        """Make ``content`` the content of ``path`` in one step."""
        temporary = self.write_aside(temporary_folder, path.name, content)
        try:
            self.before("rename", path)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def exists(self, path: Path) -> bool:
        """Whether a file is there."""
        self.before("stat", path)
        return path.exists()

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        self.before("unlink", path)
        path.unlink(missing_ok=True)

    def write_aside(self, folder: Path, name: str, content: bytes) -> Path:
        """Write and sync a temporary file, then read it back.

        Raises:
            OSError: the system failed, or the file does not read back as it was written; it is removed.
        """
        self.make_folder(folder)
        temporary = folder / f"{self.host()}-{os.getpid()}-{uuid.uuid4().hex[:12]}-{name}"
        try:
            self.before("create", temporary)
            with temporary.open("xb") as stream:
                half = len(content) // 2
                stream.write(content[:half])
                stream.flush()
                self.before("write", temporary)
                stream.write(content[half:])
                stream.flush()
                self.before("sync", temporary)
                os.fsync(stream.fileno())
            if self.read(temporary) != content:
                raise OSError(errno.EIO, "does not read back as it was written", str(temporary))
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return temporary

    def _create_exclusive(self, path: Path, content: bytes) -> bool:
        """For file systems without hard links; a kill here leaves a torn file that fsck names."""
        self.before("create_exclusive", path)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        self.sync_folder(path.parent)
        if self.read(path) != content:
            raise OSError(errno.EIO, "does not read back as it was written", str(path))
        return True
