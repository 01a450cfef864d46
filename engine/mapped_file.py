"""A file as a tensor of bytes, read from disk page by page as it is touched."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.engine.errors import CheckpointError

_LINUX_NORESERVE = 0x4000
"""``MAP_NORESERVE``, which Python names from 3.13 on only."""


def map_file(file: Path) -> Tensor:
    """Map ``file`` into memory as a uint8 tensor [size].

    The mapping is private: writing to the tensor copies the page and leaves the file alone. It is also
    unreserved, so that a table larger than the memory of the machine can be mapped; ``torch.from_file``
    reserves memory for every byte and fails there.

    Raises:
        CheckpointError: the file has vanished or cannot be mapped.
    """
    flags = mmap.MAP_PRIVATE
    if sys.platform == "linux":
        flags |= getattr(mmap, "MAP_NORESERVE", _LINUX_NORESERVE)
    try:
        with file.open("rb") as stream:
            pages = mmap.mmap(stream.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be mapped into memory ({error})") from None
    return torch.frombuffer(pages, dtype=torch.uint8)
