"""Caches that are never decoded: records are read back as the float32 values they were packed from.

The bytes are still written, as the engine does it. Reading them takes another way here: the values go through
the op that rounds without packing, and are kept beside the pool. If packing and unpacking lose nothing, no
answer can tell the two apart.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from deepinfer.engine.model.transformer import Transformer
from deepinfer.kernels.interface import Ops

_ROUND_TRIPS = {"mxfp8": "mxfp8_", "mxfp4": "mxfp4_", "fp4": "fp4_"}


class UnpackedOps:
    """A kernel set whose records live as float32 beside their packed bytes."""

    def __init__(self, ops: Ops) -> None:
        """Every other op is that of ``ops``."""
        self._ops = ops
        self._values: dict[int, torch.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        """Every op that has nothing to do with records."""
        return getattr(self._ops, name)

    def store_records(
        self, kind: str, values: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor
    ) -> None:
        """See ``Ops``; the rounded values are kept too."""
        self._ops.store_records(kind, values, data, scales, rows)
        rounded = values.clone()
        if kind in _ROUND_TRIPS:
            rounded = getattr(self._ops, _ROUND_TRIPS[kind])(rounded)
        stored = rows >= 0
        self._pool(data, values.shape[1])[rows[stored]] = rounded[stored]

    def load_records(
        self, kind: str, data: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, width: int
    ) -> torch.Tensor:
        """See ``Ops``; nothing is decoded."""
        found = self._pool(data, width)[rows.clamp(min=0)]
        found[rows < 0] = 0.0
        return found

    def _pool(self, data: torch.Tensor, width: int) -> torch.Tensor:
        """The values beside a pool of records, float32 [records, width]."""
        place = data.data_ptr()
        if place not in self._values:
            self._values[place] = torch.zeros(data.shape[0] * data.shape[1], width)
        return self._values[place]


def with_unpacked_caches(model: Transformer) -> Transformer:
    """The same weights with caches that are read from float32 values; for one set of caches only."""
    return model.bound_to(cast(Ops, UnpackedOps(model.ops)))
