"""Numbers that every turn needs, made once: each would be a launch of its own inside a recording."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.speculation.buckets import MAX_ROWS


@dataclass(frozen=True)
class TurnConstants:
    """int64 tensors on the device of the turns.

    Attributes:
        none, zero: -1 and 0, without an axis.
        rows: 0, 1, ... [384].
        seen: positions that a row sees through its window W, from its own: 1 - W ... 0.
        back: ids that an Engram hash of n looks at, from a row's own: n - 1 ... 0.
        no_window: int64 [0, W].
    """

    none: torch.Tensor
    zero: torch.Tensor
    rows: torch.Tensor
    seen: torch.Tensor
    back: torch.Tensor
    no_window: torch.Tensor

    @classmethod
    def on(cls, device: torch.device, window: int, history: int) -> TurnConstants:
        """Those of a model."""
        return cls(
            none=torch.tensor(-1, device=device),
            zero=torch.tensor(0, device=device),
            rows=torch.arange(MAX_ROWS, device=device),
            seen=torch.arange(1 - window, 1, device=device),
            back=torch.arange(history - 1, -1, -1, device=device),
            no_window=torch.empty(0, window, dtype=torch.int64, device=device),
        )
