"""How many threads work: those of the kernels, and torch's, which is kept to one while they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from deepinfer.engine.api import EngineConfig
from deepinfer.kernels.dispatch import available_threads


def kernel_threads(config: EngineConfig) -> int:
    """Threads that the CPU kernels use under a configuration."""
    return config.num_threads or available_threads()


@contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Run a block with torch on ``num_threads`` threads, then restore what was set."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """Run a block with torch on one thread.

    torch only moves data here, and its threads keep spinning for a while after each small op: on two cores
    they took a third of the kernels' time. No result of torch here depends on the number of threads.
    """
    with torch_threads(1):
        yield
