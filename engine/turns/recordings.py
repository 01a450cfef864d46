"""Turns as CUDA graphs: one per shape, recorded at its second turn and played from then on.

A turn is one copy of its table, one launch, and one copy of its outcome; none of them is waited for here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.capturing import captured
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.turns.covering import Covering
from deepinfer.engine.turns.device_turn import DeviceTurn
from deepinfer.engine.turns.outcome import Outcome
from deepinfer.engine.turns.slips import Slip
from deepinfer.engine.turns.table import TurnShape

Result = tuple[torch.Tensor, torch.Tensor]
"""Packed outcome and logits."""
Work = Callable[[], Result]
Capture = Callable[[Work], Work]
"""Records work on fixed tensors; what comes back does it again on whatever they hold then."""


@dataclass
class _Recording:
    """Turns of a shape.

    Attributes:
        table: what they are copied to.
        slips: those that no turn under way has.
        play: how to run them; None before the second one.
    """

    table: torch.Tensor
    slips: list[Slip] = field(default_factory=list)
    play: Work | None = None


@dataclass(frozen=True)
class Played:
    """A turn that was handed to the device.

    Attributes:
        logits: float32 [T, V]; the next turn of the shape writes over them, so copy what is kept.
        wait: gives the outcome, once.
        is_typical: false if it was compiled or recorded on the way.
    """

    logits: torch.Tensor
    wait: Callable[[], Outcome]
    is_typical: bool


def run_again(work: Work) -> Work:
    """What stands for a recording on a CPU."""
    return work


class CudaCapture:
    """Records CUDA graphs that share their working memory, for they are played one after the other."""

    def __init__(self) -> None:
        """No graph yet."""
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """See ``captured``."""
        return captured(work, self._pool)


class TurnRecordings:
    """Plays turns on one set of caches.

    Attributes:
        num_unplayed: turns so far that were compiled or recorded.
    """

    def __init__(self, turn: DeviceTurn, capture: Capture | None = None) -> None:
        """Nothing is recorded yet."""
        self._turn = turn
        is_cuda = turn.model.ops.device.type == "cuda"
        self._capture = capture or (CudaCapture() if is_cuda else run_again)
        self._recordings: dict[TurnShape, _Recording] = {}
        self._covering = Covering()
        self.num_unplayed = 0

    def shape_of(self, wanted: TurnShape) -> TurnShape:
        """The shape to play a turn in that could do with ``wanted``."""
        if wanted in self._recordings and self._recordings[wanted].play is not None:
            return wanted
        recorded = (shape for shape, recording in self._recordings.items() if recording.play is not None)
        return self._covering.shape_of(wanted, recorded)

    @property
    def num_recorded(self) -> int:
        """Graphs there are."""
        return sum(recording.play is not None for recording in self._recordings.values())

    @property
    def shapes(self) -> tuple[TurnShape, ...]:
        """Shapes of the turns so far."""
        return tuple(self._recordings)

    def play(self, shape: TurnShape, table: Int64) -> Played:
        """Hand a turn to the device."""
        recording = self._recordings.get(shape)
        is_typical = recording is not None and recording.play is not None
        self.num_unplayed += not is_typical
        if recording is None:
            place = torch.empty(table.shape, dtype=torch.int64, device=self._turn.model.ops.device)
            recording = self._recordings[shape] = _Recording(place)
            slip = self._sent(recording, table)
            packed, logits = self._turn.run(place, shape)
        else:
            slip = self._sent(recording, table)
            if recording.play is None:
                place = recording.table
                recording.play = self._capture(lambda: self._turn.run(place, shape))
            packed, logits = recording.play()
        slip.fetch(packed)
        return Played(logits, partial(self._landed, shape, recording, slip), is_typical)

    def _sent(self, recording: _Recording, table: Int64) -> Slip:
        """A slip for a turn, whose table is on its way."""
        slip = recording.slips.pop() if recording.slips else Slip(recording.table)
        slip.send(table, recording.table)
        return slip

    def _landed(self, shape: TurnShape, recording: _Recording, slip: Slip) -> Outcome:
        found = slip.read()
        recording.slips.append(slip)
        return _outcome(found, shape)


def _outcome(packed: npt.NDArray[np.uint8], shape: TurnShape) -> Outcome:
    """How many drafts there are follows from the size."""
    num_bytes = packed.size - 16 * shape.num_rows - 24 * shape.num_sequences
    num_drafts = num_bytes // (12 * shape.num_sequences)
    return Outcome.of(packed, shape.num_rows, shape.num_sequences, num_drafts)
