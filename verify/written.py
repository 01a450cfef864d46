"""Files that a command writes at its end: refused before the work if that can be known, else named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepinfer.engine.errors import ConfigError


def require_folders(*files: Path | None) -> None:
    """Refuse files that could not be written, before the work instead of after it.

    Raises:
        ConfigError: the folder of one does not exist, or two are the same file.
    """
    asked = [file for file in files if file is not None]
    for number, file in enumerate(asked):
        if not file.parent.is_dir():
            raise ConfigError(f"{file}: its folder does not exist; create it, or write elsewhere")
        if file.resolve() in (other.resolve() for other in asked[:number]):
            raise ConfigError(f"{file}: two outputs would be written there; give each a file of its own")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of a full or unwritable disk inside the block carry the file's name, which some of them lack.

    Raises:
        OSError: as inside, with ``filename``.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
