"""Attention and index selection on packed cache records; ``record_chains`` says what each stands for."""

from __future__ import annotations

from typing import Protocol

import torch

from deepinfer.kernels.operands import BoundRecords, PagedRecords


class RecordOps(Protocol):
    """Part of ``Ops``."""

    @property
    def reads_records(self) -> bool:
        """Whether these ops read records where they lie; if not, a step decodes them once for all layers."""

    def window_places(
        self,
        history: torch.Tensor,
        ring: torch.Tensor,
        windows: torch.Tensor,
        tables: torch.Tensor,
        owner: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Window records and cache blocks of T rows.

        Args:
            history, ring: int64 [H] and [T], records before the rows and of the rows.
            windows: int64 [T, W], which of both a row sees, -1 for none.
            tables: int32 or int64 [R, B], blocks by sequence.
            owner: int64 [T], sequence of each row.

        Returns:
            Int32 [T, W], -1 for none, and int32 [T, B].
        """

    def select_records(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        pages: PagedRecords,
        counts: torch.Tensor,
        longest: int,
        top: int,
        num_blocks: int,
        block_size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``index_select`` among the entries whose keys are ``pages``."""

    def select_records_within(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        pages: PagedRecords,
        counts: torch.Tensor,
        blocks: torch.Tensor,
        block_size: int,
        top: int,
    ) -> torch.Tensor:
        """``index_select_within`` among the entries whose keys are ``pages``."""

    def attend_records(
        self,
        q: torch.Tensor,
        window: BoundRecords,
        window_slots: torch.Tensor,
        pages: PagedRecords,
        entries: torch.Tensor,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        """``sparse_attention`` over records ``window_slots`` of ``window`` and ``entries`` of ``pages``."""
