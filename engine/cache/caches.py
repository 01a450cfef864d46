"""All caches of a model: blocks of compressed entries, rings of window latents, compressor state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from deepinfer.engine.cache.pending import PendingHalves
from deepinfer.engine.cache.record_pool import RecordPool, index_format, main_format, window_format
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.engine.step_records import StepLayout
from deepinfer.kernels.row_copies import copy_rows_

CopyRows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""See ``Ops.copy_rows_``."""


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """How much to allocate.

    Attributes:
        num_blocks: usable blocks; block 0 exists besides and means "none".
        num_slots: state slots, one per live sequence.
        ring: window positions a slot remembers.
        draft_ring: the same in the draft stages; 0 leaves the draft caches out.
        max_drafts: drafted rows that a step may take back from a sequence.
        exact: keep float32 instead of the released formats (comparison with references only).
    """

    num_blocks: int
    num_slots: int
    ring: int
    draft_ring: int = 0
    max_drafts: int = 0
    exact: bool = False


def default_ring(config: ModelConfig) -> int:
    """Window plus what verification of one draft block may take back (engine.md section 4.3)."""
    return config.sliding_window + config.dspark_block_size + 1


class Caches:
    """The storage; who owns which block and slot is decided elsewhere."""

    def __init__(
        self,
        config: ModelConfig,
        shape: CacheShape,
        device: torch.device | None = None,
        copy: CopyRows = copy_rows_,
    ) -> None:
        """Allocate everything zeroed, on the CPU unless another ``device`` is given.

        Stored records are moved by ``copy``, the op of a kernel set.
        """
        self.config, self.shape, self.copy = config, shape, copy
        window = window_format(config, shape.exact)
        stages = config.num_nextn_predict_layers if shape.draft_ring else 0
        self.window = [
            RecordPool(window, shape.num_slots, shape.ring, device) for _ in range(config.num_hidden_layers)
        ]
        self.draft_window = [
            RecordPool(window, shape.num_slots, shape.draft_ring, device) for _ in range(stages)
        ]
        self.main: dict[int, RecordPool] = {}
        self.index: dict[int, RecordPool] = {}
        self.pending: dict[int, PendingHalves] = {}
        for layer in config.kv_source_layer_ids:
            ratio = config.compress_ratio(layer)
            groups, per_group = shape.num_blocks + 1, BLOCK_TOKENS // ratio
            self.main[layer] = RecordPool(main_format(config, shape.exact), groups, per_group, device)
            self.index[layer] = RecordPool(index_format(config, shape.exact), groups, per_group, device)
            if ratio == 2:
                self.pending[layer] = PendingHalves(
                    shape.num_slots, config.head_dim, shape.max_drafts, device
                )

    def layout(self, history: int) -> StepLayout:
        """What planning has to know; ``history`` ids are hashed for an Engram, own one included."""
        return StepLayout(
            history=history,
            ring=self.shape.ring,
            draft_ring=self.shape.draft_ring,
            max_drafts=self.shape.max_drafts,
            ratios=tuple(sorted({self.config.compress_ratio(layer) for layer in self.main})),
        )

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers that own entries."""
        return sum(pool.buffer.shape[1] for pools in (self.main, self.index) for pool in pools.values())

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one sequence's rings and compressor state."""
        rings = sum(pool.buffer.shape[1] for pool in [*self.window, *self.draft_window])
        return rings + sum(pending.bytes_per_slot for pending in self.pending.values())
