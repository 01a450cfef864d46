"""The backbone: embedding, encoder layers on all rows, decoder layers on the kept rows, head.

model.md sections 2, 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import torch

from deepinfer.engine.batch import Step
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model.block import Block
from deepinfer.engine.model.engram import Memory
from deepinfer.engine.model.engram_device import DeviceEngrams
from deepinfer.engine.model.engram_hash import EngramHash
from deepinfer.engine.model.engram_vocabulary import build_vocabulary_map
from deepinfer.engine.model.hyper import Streams
from deepinfer.engine.model.indexer import Selection
from deepinfer.engine.model.rope import RopeTable, rope_frequencies
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.engine.transfer import moved
from deepinfer.kernels.interface import Ops

Memories = Callable[[], dict[int, Memory]]
"""Waits for what Engram layers look up, by layer."""


@dataclass(frozen=True)
class Hidden:
    """Result of a pass over the kept rows of a step.

    Attributes:
        normed: float32 [T', D], input of the head.
        features: float32 [T', targets * D], draft conditioning features, or None if not asked for.
    """

    normed: torch.Tensor
    features: torch.Tensor | None


class Transformer:
    """All weights of the backbone and the pass over them."""

    def __init__(self, checkpoint: Checkpoint, ops: Ops) -> None:
        """Load tensor by tensor; Engram tables stay in the memory-mapped file."""
        config = checkpoint.config
        self.config, self.ops = config, ops
        self.embedding = checkpoint.weight("embed.weight")
        self.norm = checkpoint.weight("norm.weight")
        self.head = ops.pack_linear(checkpoint.weight("head.weight"))
        self.blocks = [Block.load(checkpoint, layer, ops) for layer in range(config.num_hidden_layers)]
        self.hashes: EngramHash | None = None
        if config.engram_layer_ids:
            vocabulary = build_vocabulary_map(checkpoint.directory / "tokenizer.json", config)
            self.hashes = EngramHash(config, vocabulary)
        self.device_engrams = None if ops.device.type == "cpu" else self.engrams_on(ops.device)
        self.plain_rope = RopeTable(
            rope_frequencies(config.qk_rope_head_dim, config.rope_theta, None), ops.device
        )
        self.scaled_rope = RopeTable(
            rope_frequencies(config.qk_rope_head_dim, config.compress_rope_theta, config.rope_scaling),
            ops.device,
        )

    def bound_to(self, ops: Ops) -> Transformer:
        """The same weights under other arithmetic or threads of the same kernel set."""
        twin = copy(self)
        twin.ops = ops
        return twin

    @property
    def history_length(self) -> int:
        """Ids an Engram hash looks at, own one included."""
        return self.config.engram_max_ngram_size if self.hashes is not None else 1

    def reserve(self, num_positions: int) -> None:
        """Make the rotary tables cover positions below ``num_positions``."""
        self.plain_rope.reserve(num_positions)
        self.scaled_rope.reserve(num_positions)

    def rope(self, ratio: int) -> RopeTable:
        """Rotary table of a layer with compress ratio ``ratio``."""
        return self.scaled_rope if ratio > 0 else self.plain_rope

    def engrams_on(self, device: torch.device) -> DeviceEngrams | None:
        """All Engram tables decoded on ``device``; None if they have to stay on the host."""
        engrams = [block.engram for block in self.blocks if block.engram is not None]
        return DeviceEngrams.of(self.hashes, engrams, device)

    def memories_on_host(self, step: Step) -> dict[int, Memory]:
        """What the Engram layers read for the rows of a step, by layer; gathered on the host."""
        if self.hashes is None:
            return {}
        history = self.hashes.compressed_history(step.plan.recent_ids)
        layers = {block.layer: block.engram for block in self.blocks if block.engram is not None}
        return {layer: engram.look_up(self.hashes, history) for layer, engram in layers.items()}

    def forward(
        self,
        step: Step,
        view: StepView,
        with_features: bool = False,
        probe: Probe = no_probe,
        memories: Memories | None = None,
    ) -> Hidden:
        """Run a step, writing the caches of its rows; decoder layers see only ``step.kept``.

        ``memories`` waits for those of ``memories_on_host`` on the device, which are looked up here if not
        given.
        """
        ops, config = self.ops, self.config
        memories = memories or self._memories(step, probe)
        streams = Streams(*ops.first_streams(self.embedding, step.token_ids, config.hc_mult))
        rows, selection = step.encoder, Selection()
        features: list[Callable[[], torch.Tensor]] = []
        for block in self.blocks:
            rope = self.rope(block.ratio)
            probe("block_in", block.layer, streams.x)
            streams = block.remember(ops, streams, memories, probe)
            written = block.compress(ops, streams, step, view, rope, probe)
            if block.layer == config.decoder_start:
                rows = step.decoder
                if (
                    step.kept.shape[0] == 0
                ):  # a chunk before the kept rows: its compressed entries were all it owed
                    for wait in (written, memories, *features):
                        wait()  # nothing may be under way when a recording ends
                    return Hidden(streams.x.new_empty(0, config.hidden_size), None)
                if step.is_truncated:
                    streams, selection = streams.take(step.kept), selection.take(step.kept)
            probe("streams", block.layer, streams.x)
            probe("pre_mix", block.layer, streams.pre)
            if with_features and block.layer in config.dspark_target_layer_ids:
                features.append(ops.beside(partial(ops.mean_streams, streams.x), len(streams.x)))
            streams = block.forward(ops, streams, rows, view, rope, selection, written, probe)
        memories()  # no layer may have asked
        return self._finish(streams, features, probe)

    def _memories(self, step: Step, probe: Probe) -> Memories:
        """On the device if its tables are there, unless a probe wants to see the numbers of their rows."""
        if self.device_engrams is not None and probe is no_probe:
            look_up = partial(self.device_engrams.look_up, step.recent_ids)
            return self.ops.beside(look_up, len(step.recent_ids))
        found = moved(self.memories_on_host(step), self.ops.device)
        return lambda: found

    def _finish(
        self, streams: Streams, features: Sequence[Callable[[], torch.Tensor]], probe: Probe
    ) -> Hidden:
        last = self.config.num_hidden_layers
        probe("block_in", last, streams.x)
        probe("streams", last, streams.x)
        probe("pre_mix", last, streams.pre)
        _, normed = self.ops.collapsed_norm(streams.x, streams.pre, self.norm, self.config.rms_norm_eps)
        probe("final_norm", last, normed)
        return Hidden(normed, torch.cat([found() for found in features], 1) if features else None)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[T, D] -> float32 [T, V]."""
        return self.ops.linear_fp32(normed, self.head)
