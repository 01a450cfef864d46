"""Keeps torch to one thread while the kernels' own threads work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """Run a block with torch on one thread, then restore what was set.

    torch only moves data here, and its threads keep spinning for a while after each small op: on two cores
    they took a third of the kernels' time. No result of torch here depends on the number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
