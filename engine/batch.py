"""A planned step as tensors: what the layers of a forward pass read, moved to their device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.step_plan import Chunk, PlannedRows, StepPlan, plan_step
from deepinfer.engine.step_records import (
    GroupPlan,
    StepLayout,
    block_tables,
    boundaries,
    plan_groups,
    plan_records,
)
from deepinfer.engine.transfer import Movable


@dataclass(frozen=True)
class Bucket:
    """Shapes that steps share, see ``step_padding``.

    Attributes:
        num_rows: rows, padding included.
        history: room for ring records that the window buffer begins with.
        entries: (ratio, room for entries of all sequences, room for those of the longest), by ratio.
        is_shared: whether the decoder layers read the encoder's rows.
    """

    num_rows: int
    history: int
    entries: tuple[tuple[int, int, int], ...]
    is_shared: bool


@dataclass(frozen=True, kw_only=True)
class Rows(Movable):
    """Rows of one half of the model, see ``PlannedRows`` and ``RowRecords``; ``plan`` stays in numpy."""

    plan: PlannedRows
    owner: torch.Tensor
    """int64 [T]: the line of ``Step.tables`` that belongs to each row."""
    positions: torch.Tensor
    window: torch.Tensor
    history_records: torch.Tensor
    ring_records: torch.Tensor
    draft_ring_records: torch.Tensor
    base: dict[int, torch.Tensor]
    visible: dict[int, torch.Tensor]
    boundary_windows: torch.Tensor
    """int64 [b, W]: the windows of the rows that end a cache block."""


@dataclass(frozen=True, kw_only=True)
class Groups(Movable):
    """``GroupPlan`` as tensors; see there."""

    longest: int
    records: torch.Tensor
    starts: torch.Tensor
    writes: torch.Tensor
    pairs: torch.Tensor
    waiting: torch.Tensor
    halves: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Step(Movable):
    """``StepPlan`` as tensors; ``groups`` by compress ratio, ``bucket`` if padding rows follow.

    ``tables`` int32 or int64 [R, B] are the cache blocks of each sequence, as far as it has entries.
    ``keeps_windows`` says that rings still hold every window when the latents of all rows are in them.
    """

    plan: StepPlan
    token_ids: torch.Tensor
    recent_ids: torch.Tensor
    encoder: Rows
    kept: torch.Tensor
    own_decoder: Rows | None
    groups: dict[int, Groups]
    tables: torch.Tensor
    bucket: Bucket | None = None
    keeps_windows: bool = False

    @property
    def decoder(self) -> Rows:
        """Rows of the decoder layers; the encoder's where nothing is truncated."""
        return self.encoder if self.own_decoder is None else self.own_decoder

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The sequences' chunks in packed order."""
        return self.plan.chunks

    @property
    def is_truncated(self) -> bool:
        """Whether the decoder layers compute fewer rows than the encoder layers."""
        return self.kept.shape[0] < self.token_ids.shape[0]


def host_step(chunks: Sequence[Chunk], rule: PrefillRule, layout: StepLayout) -> Step:
    """A planned step (see ``plan_step``) with its tensors on the CPU."""
    plan = plan_step(chunks, rule, layout.history)
    groups = {ratio: plan_groups(plan, ratio, layout.max_drafts) for ratio in layout.ratios}
    slots = np.array([chunk.slot for chunk in plan.chunks], np.int64)
    is_shared = plan.decoder is plan.encoder
    # keywords are evaluated in their order: ids come last, since drafts may be waited for there
    return Step(
        plan=plan,
        encoder=_rows(plan.encoder, slots, layout, groups),
        kept=torch.from_numpy(plan.kept),
        own_decoder=None if is_shared else _rows(plan.decoder, slots, layout, groups),
        groups={ratio: _groups(group) for ratio, group in groups.items()},
        tables=torch.from_numpy(block_tables(plan.chunks)),
        recent_ids=torch.from_numpy(plan.recent_ids),
        token_ids=torch.from_numpy(np.ascontiguousarray(plan.token_ids)),
    )


def _rows(rows: PlannedRows, slots: np.ndarray, layout: StepLayout, groups: dict[int, GroupPlan]) -> Rows:
    found = plan_records(rows, slots, layout, groups)
    return Rows(
        plan=rows,
        owner=torch.from_numpy(rows.chunk),
        positions=torch.from_numpy(rows.positions),
        window=torch.from_numpy(rows.window),
        history_records=torch.from_numpy(found.history),
        ring_records=torch.from_numpy(found.ring),
        draft_ring_records=torch.from_numpy(found.draft_ring),
        base={ratio: torch.from_numpy(base) for ratio, base in found.base.items()},
        visible={ratio: torch.from_numpy(visible) for ratio, visible in found.visible.items()},
        boundary_windows=torch.from_numpy(rows.window[boundaries(rows)]),
    )


def _groups(group: GroupPlan) -> Groups:
    return Groups(
        longest=group.longest,
        records=torch.from_numpy(group.records),
        starts=torch.from_numpy(group.starts),
        writes=torch.from_numpy(group.writes),
        pairs=torch.from_numpy(group.pairs),
        waiting=torch.from_numpy(group.waiting),
        halves=torch.from_numpy(group.halves),
    )
