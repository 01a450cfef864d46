"""Steps as CUDA graphs: recorded once for a bucket of shapes, then played for every step of it.

A step of a small model is hundreds of launches, and launching costs more than running them. Whether a step is
recorded moves no bit: the kernels are the same, and padding changes no row (``step_padding``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from deepinfer.engine.batch import Bucket, Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.capturing import captured
from deepinfer.engine.model.engram import Memory
from deepinfer.engine.model.transformer import Hidden, Transformer
from deepinfer.engine.step_padding import bucket_of, filled_rows, padded
from deepinfer.engine.transfer import moved, pack, rebuilt, tensors_in, unpacked

Work = Callable[[], Hidden]
Capture = Callable[[Work], Work]
"""Records work on fixed tensors; what comes back does it again on whatever they hold then."""

MAX_ROWS = 64
"""Rows of a recorded step of generation."""


@dataclass
class _Recording:
    """One bucket: the buffer that its steps are copied to, and the graphs that read it.

    ``plays`` holds, by whether features are wanted, how to run the layers again; None after the first run,
    which went without a graph and compiled the kernels.
    """

    buffer: torch.Tensor
    step: Step
    memories: dict[int, Memory]
    plays: dict[bool, Work | None] = field(default_factory=dict)


def run_again(work: Work) -> Work:
    """What stands for a recording on a CPU."""
    return work


class StepGraphs:
    """Runs the layers of steps on one set of caches, those of few shapes from a recording.

    All recordings leave their hidden rows in one place, where the next step writes over them.
    """

    def __init__(
        self,
        model: Transformer,
        caches: Caches,
        max_positions: int,
        capture: Capture | None = None,
        *,
        max_rows: int = MAX_ROWS,
        saves_rings: bool = True,
    ) -> None:
        """Nothing is recorded yet.

        Args:
            model, caches: what runs, and where.
            max_positions: of a sequence.
            capture: how to record; a CUDA graph on such a device.
            max_rows: rows of a recorded step.
            saves_rings: whether block ends are saved, out of the rings, which hold few rows of a step.
        """
        self.model, self.caches = model, caches
        self._capture = capture or _capture_on(model.ops.device)
        model.reserve(max_positions)
        self._recordings: dict[Bucket, _Recording] = {}
        self._max_rows = max_rows
        self._max_chunk = caches.shape.ring - caches.config.sliding_window if saves_rings else None
        size = max_rows, model.config.hidden_size
        self._normed = torch.empty(size, dtype=torch.float32, device=model.ops.device)

    @property
    def num_recorded(self) -> int:
        """Graphs there are."""
        return sum(play is not None for r in self._recordings.values() for play in r.plays.values())

    def place(self, step: Step) -> Step:
        """A step of the host on the device: in the buffer of its bucket, or as it is."""
        device = self.model.ops.device
        bucket = bucket_of(step, max_rows=self._max_rows, max_chunk=self._max_chunk)
        if bucket is None:
            return moved(step, device)
        filled = padded(step, bucket)
        windows = filled.encoder.boundary_windows
        filled = _without_boundaries(filled)
        memories = {}
        if self.model.device_engrams is None:
            memories = {
                layer: replace(memory, found=filled_rows(memory.found, bucket))
                for layer, memory in self.model.memories_on_host(step).items()
            }
        tree = {0: filled, 1: memories}
        tensors = list(tensors_in(tree))
        recording = self._recordings.get(bucket)
        if recording is None:
            buffer = pack(tensors).to(device, copy=True)
            views = unpacked(buffer, tensors)
            recording = _Recording(buffer, rebuilt(filled, views), rebuilt(memories, views))
            self._recordings[bucket] = recording
        else:
            _load(recording, tensors)
        placed = rebuilt(filled, unpacked(recording.buffer, tensors))
        if windows.shape[0]:
            encoder = replace(placed.encoder, boundary_windows=moved(windows, device))
            placed = replace(placed, encoder=encoder)
        return placed

    def forward(self, step: Step, view: StepView, with_features: bool) -> Hidden:
        """See ``Transformer.forward``; ``step`` is as ``place`` gave it, padding rows come last.

        The next step writes over the result.
        """
        if step.bucket is None:
            return self.model.forward(step, view, with_features)
        recording = self._recordings[step.bucket]

        def work() -> Hidden:
            inner = StepView(self.caches, recording.step, self.model.ops)
            memories = (lambda: recording.memories) if self.model.device_engrams is None else None
            hidden = self.model.forward(recording.step, inner, with_features, memories=memories)
            return replace(hidden, normed=self._normed[: len(hidden.normed)].copy_(hidden.normed))

        if with_features not in recording.plays:
            recording.plays[with_features] = None
            hidden = work()
        else:
            play = recording.plays[with_features]
            if play is None:
                play = recording.plays[with_features] = self._capture(work)
            hidden = play()
        view.save_rings()
        return hidden


def _capture_on(device: torch.device) -> Capture:
    """Graphs of one owner share their working memory, for they are played one after the other."""
    if device.type == "cpu":
        return run_again
    return partial(captured, pool=torch.cuda.graph_pool_handle())


def _load(recording: _Recording, tensors: list[torch.Tensor]) -> None:
    """Copy a step, out of a pinned buffer of its own: that of the step before may still be read."""
    recording.buffer.copy_(pack(tensors), non_blocking=True)


def _without_boundaries(step: Step) -> Step:
    """A step whose number of boundary windows, which varies, is none."""
    rows = replace(step.encoder, boundary_windows=step.encoder.boundary_windows[:0])
    decoder = step.own_decoder
    if decoder is not None:
        decoder = replace(decoder, boundary_windows=decoder.boundary_windows[:0])
    return replace(step, encoder=rows, own_decoder=decoder)
