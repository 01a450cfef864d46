"""Everything a prefill leaves behind, by name, so that two ways of prefilling can be compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.engine.runner import Wave


def cache_rows(wave: Wave, max_rows: int, max_chunk: int | None) -> dict[str, npt.NDArray[np.float32]]:
    """Prefill a wave of one sequence of S tokens and return its caches.

    Returns:
        ``window.{layer}`` [S or kept, C], ``main.{layer}`` [entries, C], ``index_key.{layer}`` [entries, Ci],
        ``pending_value.{layer}`` and ``pending_score.{layer}`` [C] while a group is incomplete,
        ``draft_window.{stage}`` [kept, C], and ``hidden`` [kept, D], the normalised rows before the head.
    """
    config, pools = wave.model.config, wave.pools
    (ids,) = wave.sequences
    size, low = len(ids), wave.rule.low(len(ids))
    hidden = {}
    for rows in wave.run(max_rows, max_chunk):
        for row, position in enumerate(rows.positions.tolist()):
            hidden[position] = rows.normed[row].numpy()
    state = {"hidden": np.stack([hidden[position] for position in range(low, size)])}
    for layer, pool in enumerate(pools.window):
        state[f"window.{layer}"] = pool[(low if layer >= config.decoder_start else 0) : size].numpy()
    for stage, pool in enumerate(pools.draft_window):
        state[f"draft_window.{stage}"] = pool[low:size].numpy()
    for layer, pool in pools.main.items():
        entries = size // config.compress_ratio(layer)
        state[f"main.{layer}"] = pool[:entries].numpy()
        state[f"index_key.{layer}"] = pools.index_keys[layer][:entries].numpy()
    for layer, (values, scores) in pools.pending.items():
        if size % config.compress_ratio(layer):
            state[f"pending_value.{layer}"] = values[0].numpy()
            state[f"pending_score.{layer}"] = scores[0].numpy()
    return state
