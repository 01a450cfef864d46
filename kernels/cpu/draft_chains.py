"""The chains of drafting: as few calls as there are stages, on arrays that stay numpy; see ``chains``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.bound_layer import BoundLayers
from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.fma_tile import TILE_ROWS
from deepinfer.kernels.cpu.hyper import collapse_kernel
from deepinfer.kernels.cpu.linear import PackedLinear, Place, linear_kernel
from deepinfer.kernels.cpu.logprobs import first_largest
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.pointwise import sigmoid_kernel
from deepinfer.kernels.cpu.window_layer import contexts_kernel
from deepinfer.kernels.cpu.workers import Workers
from deepinfer.kernels.draft_chains import CONFIDENCE_CLAMP, window_layers
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, DraftRows, WindowLayer
from deepinfer.kernels.operands import Rotary

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
_CLAMP = np.float32(CONFIDENCE_CLAMP)


@kernel
def rows_kernel(
    golden: Int64,
    positions: Int64,
    slots: Int64,
    lows: Int64,
    embedding: Float32,
    noise_token_id: int,
    ring: int,
    streams: Float32,
    pre: Float32,
    row_positions: Int64,
    records: Int64,
    places: Int64,
    own: Int64,
) -> None:
    """Fill what ``DraftRows`` has, in its order."""
    size, window = own.shape[1], places.shape[1]
    for a in range(len(golden)):
        seen = a * size
        for w in range(window):
            position = positions[a] - window + w
            is_seen = position >= lows[a]
            records[a * window + w] = slots[a] * ring + position % ring if is_seen else -1
            places[seen, w] = a * window + w if is_seen else -1
        for b in range(size):
            row = a * size + b
            source = embedding[golden[a] if b == 0 else noise_token_id]
            for s in range(streams.shape[1]):
                streams[row, s] = source
                pre[row, s] = np.float32(1.0 if s == 0 else 0.0)
            row_positions[row] = positions[a] + b
            places[row] = places[seen]
            for other in range(size):
                own[row, other] = a * size + other


@kernel
def markov_kernel(
    base: Float32,
    hidden: Float32,
    embed: Float32,
    head: Place,
    confidence: Place,
    tokens: npt.NDArray[np.int64],
    logits: Float32,
    scores: Float32,
) -> None:
    """Fill ``tokens`` [A, 1 + B], whose first column is given, ``logits`` [A, B, V] and ``scores`` [A, B]."""
    num_blocks, size, vocabulary = base.shape
    width = hidden.shape[2]
    term, score = np.empty((num_blocks, vocabulary), np.float32), np.empty((num_blocks, 1), np.float32)
    embedded = np.empty((num_blocks, embed.shape[1]), np.float32)
    both = np.empty((num_blocks, width + embed.shape[1]), np.float32)
    for i in range(size):
        for a in range(num_blocks):
            embedded[a] = embed[tokens[a, i]]
            both[a, :width] = hidden[a, i]
            both[a, width:] = embedded[a]
        linear_kernel(embedded, head, term, vocabulary, False, 0, num_blocks)
        linear_kernel(both, confidence, score, 1, False, 0, num_blocks)
        for a in range(num_blocks):
            row = logits[a, i]
            for v in range(vocabulary):
                row[v] = base[a, i, v] + term[a, v]
            tokens[a, i + 1] = first_largest(row)
            value = score[a, 0]
            if value > _CLAMP:
                value = _CLAMP
            elif value < -_CLAMP:
                value = -_CLAMP
            scores[a, i] = value


class DraftChains:
    """The part of ``CpuOps`` that drafts; see ``kernels.draft_chains`` for what each method stands for."""

    bf16: bool
    round_caches: bool
    workers: Workers
    layers: BoundLayers

    def draft_rows(
        self,
        golden: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        low: torch.Tensor,
        embedding: torch.Tensor,
        shape: BlockShape,
        ring: int,
    ) -> DraftRows:
        """See ``Ops``."""
        count, size, num_streams, width = len(golden), shape.size, shape.num_streams, embedding.shape[1]
        rows = count * size
        streams = np.empty((rows, num_streams, width), np.float32)
        pre = np.empty((rows, num_streams), np.float32)
        at, records = np.empty(rows, np.int64), np.empty(count * shape.window, np.int64)
        places, own = np.empty((rows, shape.window), np.int64), np.empty((rows, size), np.int64)
        anchors = golden.numpy(), positions.numpy(), slots.numpy(), low.numpy()
        rows_kernel(
            *anchors, embedding.numpy(), shape.noise_token_id, ring, streams, pre, at, records, places, own
        )
        return DraftRows(*(torch.from_numpy(part) for part in (streams, pre, at, records, places, own)))

    window_layers = window_layers

    @staticmethod
    def cost_of(layers: Sequence[WindowLayer]) -> int:
        """Rough multiply-adds of a row."""
        return sum(
            40_000 * layer.num_heads + (layer.moe.num_selected + 1) * int(layer.moe.experts.cost)
            for layer in layers
        )

    def draft_contexts(
        self,
        features: torch.Tensor,
        projection: PackedLinear,
        gain: torch.Tensor,
        eps: float,
        layers: Sequence[WindowLayer],
        rotary: Rotary,
    ) -> tuple[torch.Tensor, ...]:
        """See ``Ops``."""
        rows, shown = features.contiguous().numpy(), self.layers.table(layers)
        table = rotary.cos.numpy(), rotary.sin.numpy(), rotary.positions.numpy()
        weights = projection.place, gain.numpy(), np.float32(eps)
        out = np.empty((len(layers), len(rows), layers[0].latent.num_outputs), np.float32)

        def part(low: int, high: int) -> None:
            contexts_kernel(rows, *weights, shown, table, self.round_caches, self.bf16, out, low, high)

        self.workers.run(len(rows), TILE_ROWS, part, item_cost=contexts_cost(projection, layers))
        return tuple(torch.from_numpy(latents) for latents in out)

    def draft_decode(
        self,
        streams: torch.Tensor,
        pre: torch.Tensor,
        golden: torch.Tensor,
        head: DraftHead,
    ) -> DraftOutput:
        """See ``Ops``."""
        num_blocks, bf16 = golden.shape[0], self.bf16
        x, factors = streams.contiguous().numpy(), pre.contiguous().numpy()
        num_drafts = len(x) // num_blocks
        weight: PackedLinear = head.head
        hidden, normed = np.empty((2, len(x), x.shape[2]), np.float32)
        base = np.empty((len(x), weight.num_outputs), np.float32)
        gain, eps = head.gain.numpy(), np.float32(head.eps)

        def part(low: int, high: int) -> None:
            collapse_kernel(x, factors, hidden, bf16, low, high)
            rms_norm_kernel(hidden, gain, eps, normed, bf16, low, high)
            linear_kernel(normed, weight.place, base, weight.num_outputs, False, low, high)

        self.workers.run(len(x), TILE_ROWS, part, item_cost=weight.panels.size)
        logits = base.reshape(num_blocks, num_drafts, -1)
        states = hidden.reshape(num_blocks, num_drafts, -1)
        tokens, final, scores = _markov(golden, states, logits, head.embed, head.markov, head.confidence)
        confidences = np.empty_like(scores)
        sigmoid_kernel(scores.reshape(-1), confidences.reshape(-1), 0, scores.size)
        return DraftOutput(
            *(torch.from_numpy(part) for part in (hidden, logits, tokens, final, scores, confidences))
        )

    def markov_decode(
        self,
        golden: torch.Tensor,
        states: torch.Tensor,
        base_logits: torch.Tensor,
        embed: torch.Tensor,
        head: PackedLinear,
        confidence: PackedLinear,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        hidden, base = states.contiguous().numpy(), base_logits.contiguous().numpy()
        tokens, logits, scores = _markov(golden, hidden, base, embed, head, confidence)
        return torch.from_numpy(tokens), torch.from_numpy(logits), torch.from_numpy(scores)


def contexts_cost(projection: PackedLinear, layers: Sequence[WindowLayer]) -> int:
    """Multiply-adds of a row."""
    return int(projection.panels.size) + sum(int(layer.latent.panels.size) for layer in layers)


def _markov(
    golden: torch.Tensor,
    states: Float32,
    base: Float32,
    embed: torch.Tensor,
    head: PackedLinear,
    confidence: PackedLinear,
) -> tuple[npt.NDArray[np.int64], Float32, Float32]:
    """One thread, since a block is little work."""
    num_blocks, size, _ = base.shape
    tokens = np.empty((num_blocks, 1 + size), np.int64)
    tokens[:, 0] = golden.numpy()
    logits, scores = np.empty_like(base), np.empty((num_blocks, size), np.float32)
    markov_kernel(base, states, embed.numpy(), head.place, confidence.place, tokens, logits, scores)
    return tokens, logits, scores
