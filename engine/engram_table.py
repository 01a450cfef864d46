"""The table of one Engram: stays in the mapped file, rows are decoded when read (model.md section 6)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.codes import decode_e4m3, decode_e8m0
from deepinfer.engine.errors import CheckpointError, NonFiniteError

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
_GROUP = 32
_ALL_BYTES = torch.arange(256, dtype=torch.int64).to(torch.uint8)
_E4M3: Float32 = decode_e4m3(_ALL_BYTES).numpy()
_E8M0: Float32 = decode_e8m0(_ALL_BYTES).numpy()
_NAN_SCALE = 255


class EngramTable:
    """Rows of width W, stored as FP8 with a scale per 32 values, or unquantised."""

    def __init__(self, name: str, file: Path, table: torch.Tensor, scale: torch.Tensor | None) -> None:
        """Wrap a mapped table [R, W] and its scales uint8 [R, W / 32], None if it is BF16 or F32."""
        self.name, self.file = name, file
        self._table = table if scale is None else table.view(torch.uint8)
        self._scale = None if scale is None else scale.numpy()

    @property
    def num_rows(self) -> int:
        """R."""
        return self._table.shape[0]

    @property
    def num_values(self) -> int:
        """R * W."""
        return self._table.numel()

    def rows(self, row_ids: Int64) -> Float32:
        """Decode rows int64 [...] to float32 [..., W].

        Raises:
            IndexError: a row id lies outside the table.
            CheckpointError: a scale byte of a row is 255, which stands for NaN.
            NonFiniteError: a row holds NaN or infinity.
        """
        flat = row_ids.reshape(-1)
        num_rows, width = self._table.shape
        if flat.size and not 0 <= flat.min() <= flat.max() < num_rows:
            raise IndexError(
                f"{self.name} has rows 0 to {num_rows - 1}, asked for {flat.min()} to {flat.max()}"
            )
        found = self._plain(flat) if self._scale is None else self._scaled(flat, self._scale)
        if not np.isfinite(found).all():
            count = int((~np.isfinite(found)).sum())
            raise NonFiniteError(
                f"{self.file}: {self.name} holds {count} values that are NaN or infinite; "
                "the checkpoint is damaged"
            )
        return found.reshape(*row_ids.shape, width)

    def _plain(self, flat: Int64) -> Float32:
        chosen: Float32 = self._table[torch.from_numpy(flat)].to(torch.float32).numpy()
        return chosen

    def _scaled(self, flat: Int64, scale: npt.NDArray[np.uint8]) -> Float32:
        factors = scale[flat]
        if (factors == _NAN_SCALE).any():
            raise CheckpointError(
                f"{self.file}: the scale of {self.name} holds byte 255, which stands for NaN; "
                "the checkpoint is damaged"
            )
        width = self._table.shape[1]
        values: Float32 = _E4M3[self._table.numpy()[flat]].reshape(len(flat), width // _GROUP, _GROUP)
        values *= _E8M0[factors][:, :, None]
        return values
