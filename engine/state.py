"""Everything a prefill leaves behind, by name, so that two ways of prefilling can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer.engine.cache.record_pool import RecordPool
from deepinfer.engine.runner import Wave
from deepinfer.engine.step_plan import entry_records


def _bytes(pool: RecordPool, records: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Records as stored, codes then scales, uint8 [n, bytes]."""
    groups, places = records // pool.per_group, records % pool.per_group
    data, scales = pool.data.cpu().numpy()[groups, places], pool.scales.cpu().numpy()[groups, places]
    return np.concatenate([data, scales], axis=1)


def cache_rows(wave: Wave, max_rows: int, max_chunk: int | None) -> dict[str, npt.NDArray[Any]]:
    """Prefill a wave of one sequence of S tokens and return its caches, packed as they are stored.

    Returns:
        uint8 ``window.{layer}`` (the positions its ring remembers), ``main.{layer}`` and
        ``index_key.{layer}`` (all entries), ``draft_window.{stage}`` (kept positions); float32
        ``pending_value.{layer}`` and ``pending_score.{layer}`` [C] while a group is incomplete, and
        ``hidden`` [kept, D], the normalised rows before the head.
    """
    config, caches = wave.model.config, wave.caches
    (ids,) = wave.sequences
    size, low = len(ids), wave.rule.low(len(ids))
    hidden = {}
    for rows in wave.run(max_rows, max_chunk):
        normed = rows.normed.cpu().numpy()
        for row, position in enumerate(rows.positions.tolist()):
            hidden[position] = normed[row]
    state: dict[str, npt.NDArray[Any]] = {
        "hidden": np.stack([hidden[position] for position in range(low, size)])
    }
    ring = caches.shape.ring
    for layer, pool in enumerate(caches.window):
        first = max(size - ring, low if layer >= config.decoder_start else 0)
        state[f"window.{layer}"] = _bytes(pool, np.arange(first, size) % ring)
    for stage, pool in enumerate(caches.draft_window):
        state[f"draft_window.{stage}"] = _bytes(pool, np.arange(low, size))
    for layer, pool in caches.main.items():
        ratio = config.compress_ratio(layer)
        records = entry_records(wave.blocks[0], np.arange(size // ratio), ratio)
        state[f"main.{layer}"] = _bytes(pool, records)
        state[f"index_key.{layer}"] = _bytes(caches.index[layer], records)
    for layer, pending in caches.pending.items():
        if size % config.compress_ratio(layer):
            state[f"pending_value.{layer}"] = pending.values[0].cpu().numpy()
            state[f"pending_score.{layer}"] = pending.scores[0].cpu().numpy()
    return state
