"""Truncated prefill as arithmetic on positions: which rows the decoder layers compute and what they may see.

model.md section 10.2. ``N`` is the length of the whole prompt, never of a chunk; ``low = max(0, N - keep)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.api import PrefillMode
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.model_config import ModelConfig

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PrefillRule:
    """A prefill mode with its kept rows, valid for a model.

    Attributes:
        mode: off, mask or compact.
        keep: trailing rows of a prompt that keep their decoder rows; unused in mode off.
        window: sliding window, own token included.
    """

    mode: PrefillMode
    keep: int
    window: int

    def low(self, num_tokens: int) -> int:
        """First kept position of a prompt of ``num_tokens``; 0 in mode off."""
        return int(self.lows(np.int64(num_tokens)))

    def lows(self, num_tokens: Int64 | np.int64) -> Int64:
        """``low`` of each prompt length."""
        kept_from = np.maximum(num_tokens - self.keep, 0)
        return np.zeros_like(kept_from) if self.mode is PrefillMode.OFF else kept_from

    def decoder_starts(self, starts: Int64, ends: Int64, num_tokens: Int64) -> Int64:
        """First position of each chunk ``[start, end)`` that the decoder layers compute; its end if none is.

        All arguments int64 [chunks]; ``num_tokens`` are the prompt lengths.
        """
        if self.mode is not PrefillMode.COMPACT:
            return starts
        return np.minimum(np.maximum(starts, self.lows(num_tokens)), ends)

    def encoder_window_low(self, positions: Int64) -> Int64:
        """First position each query sees through the window of an encoder layer."""
        return np.maximum(positions - self.window + 1, 0)

    def decoder_window_low(self, positions: Int64, num_tokens: Int64) -> Int64:
        """The same in a decoder layer; ``position + 1`` (an empty window) for a row before the kept ones.

        ``num_tokens`` int64 [T], prompt length of each row's sequence.
        """
        low = self.lows(num_tokens)
        return np.where(positions < low, positions + 1, np.maximum(positions - self.window + 1, low))


def prefill_rule(config: ModelConfig, mode: PrefillMode, keep: int | None) -> PrefillRule:
    """Resolve the default of ``keep`` and check it against the model.

    Raises:
        ConfigError: fewer rows than a window plus one draft block, or a model whose decoder cannot be
            truncated.
    """
    kept = config.default_keep if keep is None else keep
    if mode is not PrefillMode.OFF:
        if not config.supports_truncated_prefill:
            raise ConfigError(
                f"prefill {mode}: a layer after the first decoder layer owns a compressor; use off"
            )
        if kept < config.min_keep:
            raise ConfigError(
                f"prefill {mode} must keep at least {config.min_keep} rows "
                f"(sliding_window {config.sliding_window} + "
                f"dspark_block_size {config.dspark_block_size} + 1), "
                f"got keep {kept}"
            )
    return PrefillRule(mode=mode, keep=kept, window=config.sliding_window)


def visible_entries(positions: Int64, ratio: int) -> Int64:
    """How many compressed entries a query sees: ``floor((t + 1) / ratio)``."""
    return (positions + 1) // ratio


def window_slots(positions: Int64, low: Int64, base: Int64, window: int) -> Int64:
    """Fixed slot list of the window part, int64 [T, window].

    Column s stands for position ``t - window + 1 + s``; -1 where it is before ``low``. Narrowing a window
    blanks columns and never shifts them, which keeps the order of every sum (model.md section 10.6).

    Args:
        positions: [T].
        low: first visible position of each row, [T].
        base: pool row of position 0 of the row's sequence, [T].
        window: W.
    """
    seen = positions[:, None] + np.arange(1 - window, 1, dtype=np.int64)[None]
    return np.where(seen >= low[:, None], base[:, None] + seen, -1)
