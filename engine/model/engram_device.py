"""Engram tables on the device, so that a row is found where its token becomes known.

The tables are decoded by the code of the host, once, and the hashes are integers, so every value is the one
that the host would look up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.errors import DeepInferError
from deepinfer.engine.model.engram import EngramLayer, Memory
from deepinfer.engine.model.engram_hash import EngramHash

MAX_BYTES = 1 << 28
"""Most bytes of decoded tables; larger ones stay in the mapped file and are read by the host."""
_NO_ROWS = np.empty((0, 0), np.int64)


@dataclass(frozen=True)
class _Layer:
    """Multipliers by distance, primes and offsets int64 [n - 1, heads], table float32 [rows, W]."""

    multipliers: tuple[int, ...]
    primes: torch.Tensor
    offsets: torch.Tensor
    table: torch.Tensor


@dataclass(frozen=True)
class DeviceEngrams:
    """What Engram layers look up; none for a model without them."""

    compressed: torch.Tensor
    pad: int
    layers: dict[int, _Layer]

    @classmethod
    def of(
        cls, hashes: EngramHash | None, engrams: Sequence[EngramLayer], device: torch.device
    ) -> DeviceEngrams | None:
        """Those of a model; None if they are too large, or if a row that may never be read is damaged."""
        layers = {}
        if hashes is None:
            return cls(torch.empty(0, dtype=torch.int64, device=device), 0, {})
        if sum(engram.table.num_values for engram in engrams) * 4 > MAX_BYTES:
            return None
        for engram in engrams:
            try:
                values = engram.table.rows(np.arange(engram.table.num_rows))
            except DeepInferError:
                return None
            shape = (hashes.max_ngram_size - 1, -1)
            primes, offsets = (
                torch.from_numpy(part[engram.slot].reshape(shape)).to(device)
                for part in (hashes.primes, hashes.offsets)
            )
            multipliers = tuple(hashes.multipliers[engram.slot].tolist())
            layers[engram.layer] = _Layer(multipliers, primes, offsets, torch.from_numpy(values).to(device))
        return cls(torch.from_numpy(hashes.vocabulary_map).to(device), hashes.pad, layers)

    def look_up(self, recent: torch.Tensor) -> dict[int, Memory]:
        """Memories of rows by layer; ``recent`` int64 [T, n]: own id, then those before it, -1 for none."""
        if not self.layers:
            return {}
        history = torch.where(recent >= 0, self.compressed[recent.clamp(min=0)], self.pad)
        return {
            number: Memory(_NO_ROWS, layer.table[_hashed(layer, history)].flatten(1))
            for number, layer in self.layers.items()
        }


def _hashed(layer: _Layer, history: torch.Tensor) -> torch.Tensor:
    """Table rows int64 [T, (n - 1) * heads], as ``EngramHash.rows`` numbers them."""
    accumulated, columns = history[:, 0] * layer.multipliers[0], []
    for distance in range(1, history.shape[1]):
        accumulated = accumulated ^ (history[:, distance] * layer.multipliers[distance])
        columns.append(accumulated)
    found = torch.stack(columns, 1)[:, :, None] % layer.primes + layer.offsets
    return found.flatten(1)
