"""How many threads work: those of the kernels, and torch's, as many as the kernel set asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from deepinfer.engine.api import EngineConfig
from deepinfer.kernels.dispatch import available_threads
from deepinfer.kernels.interface import Ops


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


def torch_threads_of(ops: Ops) -> AbstractContextManager[None]:
    """Run a block with as many torch threads as the kernel set wants.

    Where torch only moves data it gets one: its threads keep spinning for a while after each small op, and on
    two cores they took a third of the kernels' time. No bit of those kernel sets depends on it.
    """
    return torch_threads(ops.torch_threads)
