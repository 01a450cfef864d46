"""Caches that are never decoded: records are read back as the float32 values they were packed from.

The bytes are still written, as the engine does it. Reading them takes another way here: the values go through
the op that rounds without packing, and are kept beside the pool. If packing and unpacking lose nothing, no
answer can tell the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from deepinfer.engine.model.transformer import Transformer
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords

_ROUND_TRIPS = {"mxfp8": "mxfp8_", "mxfp4": "mxfp4_", "fp4": "fp4_"}


@dataclass(frozen=True)
class _Unpacked:
    """A pool of records with its values, float32 [records, width]."""

    kind: str
    packed: BoundRecords
    values: torch.Tensor


class UnpackedOps:
    """A kernel set whose records live as float32 beside their packed bytes."""

    can_be_recorded = False  # rows without a record are found on the host
    reads_records = False  # they are what is not believed here

    def __init__(self, ops: Ops) -> None:
        """Every other op is that of ``ops``."""
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        """Every op that has nothing to do with records."""
        return getattr(self._ops, name)

    def bind_records(self, kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> _Unpacked:
        """See ``Ops``; the values get room beside the bytes."""
        packed = self._ops.bind_records(kind, width, data, scales)
        return _Unpacked(kind, packed, torch.zeros(data.shape[0] * data.shape[1], width, device=data.device))

    def store_records(self, where: _Unpacked, values: torch.Tensor, rows: torch.Tensor) -> None:
        """See ``Ops``; the rounded values are kept too."""
        self._ops.store_records(where.packed, values, rows)
        rounded = values.clone()
        if where.kind in _ROUND_TRIPS:
            rounded = getattr(self._ops, _ROUND_TRIPS[where.kind])(rounded)
        stored = rows >= 0
        where.values[rows[stored]] = rounded[stored]

    def load_records(
        self, where: _Unpacked, rows: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Ops``; nothing is decoded."""
        found = where.values[rows.clamp(min=0)]
        found[rows < 0] = 0.0
        return found if out is None else out.copy_(found)


def with_unpacked_caches(model: Transformer) -> Transformer:
    """The same weights with caches that are read from float32 values; for one set of caches only."""
    return model.bound_to(cast(Ops, UnpackedOps(model.ops)))
