"""Records work as a CUDA graph; nothing else may touch the device meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def captured(work: Callable[[], T], pool: Any = None) -> Callable[[], T]:
    """``work`` as a graph; it must have run before, so that nothing is left to compile.

    What comes back plays it, on the same tensors and with the same result. ``pool`` holds the working memory
    of graphs that are played one after the other. The collector is off while the graph is recorded: an old
    engine that it found would give graphs and buffers back to the device, which ends the recording.
    """
    graph, was_on = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="relaxed"):
            result = work()
    finally:
        if was_on:
            gc.enable()

    def play() -> T:
        graph.replay()
        return result

    return play
