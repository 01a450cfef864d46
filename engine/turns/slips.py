"""Host memory that turns travel through: their tables to the device, their outcomes back.

Memory that a device copies from and to by itself has to be pinned, which takes a host 0.1 ms a turn if it is
asked for anew. A slip has it for one turn under way and is used again when that turn has landed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.step_plan import Int64


class Slip:
    """Room for the table and the outcome of one turn of a shape."""

    def __init__(self, table: torch.Tensor) -> None:
        """``table`` int64 [R, columns] is what the device reads; room for outcomes follows from the first."""
        self._is_cuda = table.device.type == "cuda"
        self._table = torch.empty(table.shape, dtype=torch.int64, pin_memory=self._is_cuda)
        self._columns = self._table.numpy()
        self._outcome: torch.Tensor | None = None
        self._landed = torch.cuda.Event() if self._is_cuda else None  # type: ignore[no-untyped-call]

    def send(self, table: Int64, place: torch.Tensor) -> None:
        """Copy ``table`` to ``place`` on the device, which nobody waits for."""
        self._columns[...] = table
        place.copy_(self._table, non_blocking=True)

    def fetch(self, packed: torch.Tensor) -> None:
        """Begin to copy an outcome uint8 [bytes] from the device."""
        if self._outcome is None:
            self._outcome = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=self._is_cuda)
        self._outcome.copy_(packed, non_blocking=True)
        if self._landed is not None:
            self._landed.record()

    def read(self) -> npt.NDArray[np.uint8]:
        """Wait for the outcome, and for that turn alone; a copy, for the slip is used again."""
        assert self._outcome is not None, "nothing was fetched"
        if self._landed is not None:
            self._landed.synchronize()
        return self._outcome.numpy().copy()
