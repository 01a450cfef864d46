"""Drafting from anchors to tokens in one call of compiled code.

At batch 1 a block is two rows, and a hand-over between Python and compiled code costs as much as a third of a
layer of it. Nothing here computes: the kernels of ``draft_rows``, ``window_layers`` and ``draft_decode`` are
called one after the other.

Legend: A blocks of B rows, S residual streams, D model width, W window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.draft_chains import (
    DraftChains,
    contexts_cost,
    markov_kernel,
    rows_kernel,
)
from deepinfer.kernels.cpu.experts import ROWS_PER_TASK, Place
from deepinfer.kernels.cpu.fma_tile import TILE_ROWS
from deepinfer.kernels.cpu.hyper import collapse_kernel
from deepinfer.kernels.cpu.linear import PackedLinear, linear_kernel
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.pointwise import sigmoid_kernel
from deepinfer.kernels.cpu.record_kernels import Place as Pool
from deepinfer.kernels.cpu.record_kernels import load_place, store_place
from deepinfer.kernels.cpu.records import BoundRecords, refuse_outside
from deepinfer.kernels.cpu.window_layer import Latent, Layer, Table, contexts_kernel, window_layer_kernel
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, WindowLayer
from deepinfer.kernels.operands import Rotary

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Head = tuple[Float32, np.float32, Place, Float32, Place, Place]
"""Gain and eps of the norm; head; embedding and head of the Markov term; confidence."""


@kernel
def block_kernel(
    anchors: tuple[Int64, Int64, Int64, Int64],
    embedding: Float32,
    numbers: tuple[int, int, int, int],
    angles: tuple[Float32, Float32],
    layers: tuple[Layer, ...],
    pools: tuple[Pool, ...],
    head: Head,
    flags: tuple[bool, bool],
    hidden: Float32,
    base: Float32,
    tokens: Int64,
    logits: Float32,
    scores: Float32,
    confidences: Float32,
    low: int,
    high: int,
) -> int:
    """Blocks ``low .. high``, as many at once as experts take rows; how many context records do not exist.

    ``anchors`` are golden tokens, positions, slots and first contexts, ``numbers`` the noise token, positions
    of a ring, W and S. The last six are results: [A, B, D], twice [A, B, V], [A, 1 + B] with its first column
    given, twice [A, B].
    """
    golden, positions, slots, lows = anchors
    noise_token_id, ring, window, num_streams = numbers
    gain, eps, place, embed, markov, confidence = head
    size, width, vocabulary = hidden.shape[1], hidden.shape[2], base.shape[2]
    step, num_outside = ROWS_PER_TASK // size, 0
    for first in range(low, high, step):
        last = min(first + step, high)
        num_blocks, num_rows = last - first, (last - first) * size
        streams = np.empty((num_rows, num_streams, width), np.float32)
        pre, at = np.empty((num_rows, num_streams), np.float32), np.empty(num_rows, np.int64)
        records, places = np.empty(num_blocks * window, np.int64), np.empty((num_rows, window), np.int64)
        own = np.empty((num_rows, size), np.int64)
        rows_kernel(
            golden[first:last], positions[first:last], slots[first:last], lows[first:last],
            embedding, noise_token_id, ring, streams, pre, at, records, places, own,
        )  # fmt: skip
        for stage in range(len(layers)):
            context, outside = load_place(pools[stage], records)
            num_outside += outside
            attn_site, attention, num_heads, ffn_site, moe = layers[stage]
            after, following = np.empty_like(streams), np.empty_like(pre)
            window_layer_kernel(
                streams, pre, attn_site, attention, num_heads, ffn_site, moe, (angles[0], angles[1], at),
                context, places, own, flags[0], flags[1], after, following, 0, num_rows,
            )  # fmt: skip
            streams, pre = after, following
        states = hidden[first:last].reshape(num_rows, width)
        normed = np.empty_like(states)
        collapse_kernel(streams, pre, states, flags[1], 0, num_rows)
        rms_norm_kernel(states, gain, eps, normed, flags[1], 0, num_rows)
        products = base[first:last].reshape(num_rows, vocabulary)
        linear_kernel(normed, place, products, vocabulary, False, 0, num_rows)
        markov_kernel(
            base[first:last], hidden[first:last], embed, markov, confidence,
            tokens[first:last], logits[first:last], scores[first:last],
        )  # fmt: skip
        flat = confidences[first:last].reshape(-1)
        sigmoid_kernel(scores[first:last].reshape(-1), flat, 0, num_rows)
    return num_outside


@kernel
def keep_kernel(
    features: Float32,
    weights: tuple[Place, Float32, np.float32],
    layers: tuple[Latent, ...],
    table: Table,
    flags: tuple[bool, bool],
    pools: tuple[Pool, ...],
    records: Int64,
    out: Float32,
    low: int,
    high: int,
) -> int:
    """``contexts_kernel``, and its latents stored; how many records do not exist."""
    projection, gain, eps = weights
    contexts_kernel(features, projection, gain, eps, layers, table, flags[0], flags[1], out, low, high)
    num_outside = 0
    for number in range(len(pools)):
        num_outside += store_place(pools[number], out[number], records, low, high)
    return num_outside


class DraftBlocks(DraftChains):
    """``DraftChains`` and longer ones of them: ``draft_block`` and ``keep_contexts``."""

    def draft_block(
        self,
        golden: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        low: torch.Tensor,
        embedding: torch.Tensor,
        shape: BlockShape,
        ring: int,
        rotary: Rotary,
        layers: Sequence[WindowLayer],
        pools: Sequence[BoundRecords],
        head: DraftHead,
    ) -> DraftOutput:
        """See ``Ops``."""
        count, size, width = len(golden), shape.size, embedding.shape[1]
        if size > ROWS_PER_TASK:
            raise ValueError(f"draft_block: blocks of {size} rows, at most {ROWS_PER_TASK} go")
        weight: PackedLinear = head.head
        hidden = np.empty((count, size, width), np.float32)
        base, logits = np.empty((2, count, size, weight.num_outputs), np.float32)
        scores, confidences = np.empty((2, count, size), np.float32)
        tokens, first = np.empty((count, 1 + size), np.int64), golden.numpy()
        tokens[:, 0] = first
        anchors = first, positions.numpy(), slots.numpy(), low.numpy()
        numbers = shape.noise_token_id, ring, shape.window, shape.num_streams
        angles = rotary.cos.numpy(), rotary.sin.numpy()
        bound, seen = tuple(self.layers[layer] for layer in layers), tuple(pool.place for pool in pools)
        ends = _head_of(head)
        flags, table = (self.round_caches, self.bf16), embedding.numpy()
        found = hidden, base, tokens, logits, scores, confidences
        outside: list[int] = []

        def part(low: int, high: int) -> None:
            outside.append(
                block_kernel(anchors, table, numbers, angles, bound, seen, ends, flags, *found, low, high)
            )

        self.workers.run(count, 1, part, item_cost=size * (self.cost_of(layers) + weight.panels.size))
        refuse_outside("draft_block", sum(outside), pools[0].layout)
        flat = hidden.reshape(count * size, width)
        return DraftOutput(*(torch.from_numpy(x) for x in (flat, *found[1:])))

    def keep_contexts(
        self,
        features: torch.Tensor,
        projection: PackedLinear,
        gain: torch.Tensor,
        eps: float,
        layers: Sequence[WindowLayer],
        rotary: Rotary,
        pools: Sequence[BoundRecords],
        records: torch.Tensor,
    ) -> None:
        """See ``Ops``."""
        rows, index = features.contiguous().numpy(), records.contiguous().numpy()
        table = rotary.cos.numpy(), rotary.sin.numpy(), rotary.positions.numpy()
        weights, shown = (projection.place, gain.numpy(), np.float32(eps)), self.shown_by(layers)
        flags, places = (self.round_caches, self.bf16), tuple(pool.place for pool in pools)
        out = np.empty((len(layers), len(rows), pools[0].width), np.float32)
        outside: list[int] = []

        def part(low: int, high: int) -> None:
            outside.append(keep_kernel(rows, weights, shown, table, flags, places, index, out, low, high))

        self.workers.run(len(rows), TILE_ROWS, part, item_cost=contexts_cost(projection, layers))
        refuse_outside("keep_contexts", sum(outside), pools[0].layout)


def _head_of(head: DraftHead) -> Head:
    places = head.head.place, head.embed.numpy(), head.markov.place, head.confidence.place
    return head.gain.numpy(), np.float32(head.eps), *places
