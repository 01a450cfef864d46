"""How many drafts of each sequence a step verifies."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np

from deepinfer.engine.api import Float32Array
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.confidence import ConfidenceDrafts
from deepinfer.engine.speculation.options import Speculation, SpeculationPolicy
from deepinfer.engine.speculation.timing import Drafting, StepTiming
from deepinfer.engine.speculation.unseen import Unseen
from deepinfer.kernels.interface import Ops


class DraftPolicy(Protocol):
    """Shares the rows of a step that are free for drafts."""

    def shares(self, sequences: Items[Sequence], room: int) -> list[int]:
        """Drafts of each decoding sequence, at most ``num_useful_drafts`` each and ``room`` together."""

    def unseen(self, sequences: Items[Sequence], num_drafted: int) -> Unseen:
        """What a step verifies that starts before its drafts, so many of each sequence, are known here."""

    def unseen_of(self, confidences: Float32Array, is_drafted: np.ndarray, num_drafted: int) -> Unseen:
        """``unseen`` by columns.

        Args:
            confidences: float32 [R, B], of the drafts that are known, 0 behind their end.
            is_drafted: bool [R], whether a sequence has any.
            num_drafted: as in ``unseen``.
        """

    def block(self, num_sequences: int) -> int:
        """How many drafts a step in which so many sequences decode makes of each for the next one."""

    def mode(self, num_sequences: int) -> Drafting:
        """What a step in which so many sequences decode does for the drafts of the next one."""

    def passes(self, num_sequences: int) -> bool:
        """A plain step of a pause has ended: whether nothing has to be learned from it, and it is counted."""

    def learn(self, timing: StepTiming) -> None:
        """A step without rows of prompts took so long."""


class FixedDrafts:
    """The same number for every sequence, as long as there is room."""

    def __init__(self, num_drafts: int) -> None:
        """``num_drafts`` is the number."""
        self._num_drafts = num_drafts

    def shares(self, sequences: Items[Sequence], room: int) -> list[int]:
        """See ``DraftPolicy``."""
        given = []
        for sequence in sequences:
            share = min(self._num_drafts, sequence.num_useful_drafts, room)
            given.append(share)
            room -= share
        return given

    def unseen(self, sequences: Items[Sequence], num_drafted: int) -> Unseen:
        """The number."""
        return Unseen(self._num_drafts)

    def unseen_of(self, confidences: Float32Array, is_drafted: np.ndarray, num_drafted: int) -> Unseen:
        """The number."""
        return Unseen(self._num_drafts)

    def block(self, num_sequences: int) -> int:
        """The number."""
        return self._num_drafts

    def mode(self, num_sequences: int) -> Drafting:
        """Always on."""
        return Drafting.ON

    def passes(self, num_sequences: int) -> bool:
        """There is no pause."""
        return False

    def learn(self, timing: StepTiming) -> None:
        """Nothing to learn."""


def draft_policy(speculation: Speculation, config: ModelConfig, ops: Ops) -> DraftPolicy:
    """The policy that the options name.

    Raises:
        ConfigError: more drafts than the model's block holds, or a model without draft stages.
    """
    size = config.dspark_block_size if config.num_nextn_predict_layers else 0
    if size == 0:
        raise ConfigError("speculation: the checkpoint has no draft stages; switch it off")
    count = size if speculation.num_drafts is None else speculation.num_drafts
    if not 1 <= count <= size:
        raise ConfigError(f"speculation: {count} drafts a step; this model drafts blocks of 1 to {size}")
    if speculation.policy is SpeculationPolicy.CONFIDENCE:
        return ConfidenceDrafts(ops, count)
    return FixedDrafts(count)
