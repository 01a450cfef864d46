"""Splits independent items of an op over threads; the split never touches the arithmetic of an item."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.job_threads import Helpers

Int64 = npt.NDArray[np.int64]
HANDOFF_COST = 2_000_000
"""About 50 us at the speed of the matrix products, measured for a thread pool on a virtual machine."""


class Workers:
    """A fixed number of threads that call ``body(low, high)`` on parts of ``range(num_items)``.

    Kernels release the GIL, so plain threads run in parallel. Every item (a row, a tile, a sequence) is
    computed whole by one call, which is why the number of threads cannot change a bit.
    """

    def __init__(self, num_threads: int) -> None:
        """Start ``num_threads - 1`` helpers; the caller's own thread is the last one."""
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        self.num_threads = num_threads
        self.handoff_cost = HANDOFF_COST
        self._pool = ThreadPoolExecutor(num_threads - 1, "deepinfer-kernel") if num_threads > 1 else None
        self._helpers = Helpers(num_threads - 1)

    def run(
        self,
        num_items: int,
        grain: int,
        body: Callable[[int, int], None],
        parts_per_thread: int = 1,
        item_cost: int = 5000,
    ) -> None:
        """Call ``body`` so that each item is covered once; parts are multiples of ``grain``.

        ``parts_per_thread`` above 1 cuts finer and lets a free thread take the next part, for items of uneven
        cost. ``item_cost`` is the rough work of an item in multiply-adds of a matrix product; waking a thread
        costs as much as ``HANDOFF_COST`` of them, so smaller calls stay on the caller's thread.
        """
        if num_items <= 0:
            return
        num_grains = -(-num_items // grain)
        if self._pool is None or num_grains == 1 or num_items * item_cost < self.handoff_cost:
            body(0, num_items)
            return
        parts = min(self.num_threads * parts_per_thread, num_grains)
        cuts = [min(num_items, (num_grains * part // parts) * grain) for part in range(parts + 1)]
        _begin(self._pool, cuts, min(parts, self.num_threads) - 1, body)()

    def begin(self, job: int, line: Int64, num_items: int, operands: object) -> Callable[[], int]:
        """Let helpers do compiled work while the caller goes on; see ``Helpers.begin``."""
        return self._helpers.begin(job, line, num_items, operands)


def _begin(
    pool: ThreadPoolExecutor, cuts: list[int], num_helpers: int, body: Callable[[int, int], None]
) -> Callable[[], None]:
    """Hand the parts between ``cuts`` to helpers; what comes back does those that are left, and waits."""
    waiting = iter(range(len(cuts) - 1))  # next() on one iterator is atomic under the GIL

    def drain() -> None:
        for part in waiting:
            body(cuts[part], cuts[part + 1])

    helpers = [pool.submit(drain) for _ in range(num_helpers)]

    def end() -> None:
        drain()
        for helper in helpers:
            if not helper.cancel():  # one that never started has nothing left to do
                helper.result()

    return end
