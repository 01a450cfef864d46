"""Drafting from anchors to tokens on arrays that stay numpy, with few calls of compiled code.

At batch 1 a block is two rows, and a hand-over between Python and compiled code costs as much as a third of a
layer of it. Nothing here computes: the kernels of ``draft_rows``, ``window_layers`` and ``draft_decode`` are
called one after the other. Layers are called from Python: one kernel around everything would compile them
twice, 40 s more at first use.

Legend: A blocks of B rows, L layers, D model width, W window, C latent width, V vocabulary.
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
from deepinfer.kernels.cpu.experts import ROWS_PER_TASK
from deepinfer.kernels.cpu.fma_tile import TILE_ROWS
from deepinfer.kernels.cpu.hyper import collapse_kernel
from deepinfer.kernels.cpu.linear import PackedLinear, Place, linear_kernel
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.pointwise import sigmoid_kernel
from deepinfer.kernels.cpu.record_kernels import Place as Pool
from deepinfer.kernels.cpu.record_kernels import load_place, store_place
from deepinfer.kernels.cpu.records import BoundRecords, refuse_outside
from deepinfer.kernels.cpu.window_layer import Latent, Table, contexts_kernel, window_layer_kernel
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, WindowLayer
from deepinfer.kernels.operands import Rotary

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Head = tuple[Float32, np.float32, Place, Float32, Place, Place]
"""Gain and eps of the norm; head; embedding and head of the Markov term; confidence."""


@kernel
def begin_kernel(
    anchors: tuple[Int64, Int64, Int64, Int64],
    embedding: Float32,
    numbers: tuple[int, int],
    pools: tuple[Pool, ...],
    rows: tuple[Float32, Float32, Int64, Int64, Int64, Int64],
    contexts: Float32,
    low: int,
    high: int,
) -> int:
    """``rows_kernel`` of blocks ``low .. high`` and what they see; how many context records do not exist.

    ``anchors`` are golden tokens, positions, slots and first contexts, ``numbers`` the noise token and the
    positions of a ring. ``rows`` and ``contexts`` [L, n * W, C] are filled, for n blocks.
    """
    golden, positions, slots, lows = anchors
    streams, pre, at, records, places, own = rows
    rows_kernel(
        golden[low:high], positions[low:high], slots[low:high], lows[low:high],
        embedding, numbers[0], numbers[1], streams, pre, at, records, places, own,
    )  # fmt: skip
    num_outside = 0
    for stage in range(len(pools)):
        loaded, outside = load_place(pools[stage], records)
        contexts[stage] = loaded
        num_outside += outside
    return num_outside


@kernel
def end_kernel(
    streams: Float32,
    pre: Float32,
    head: Head,
    bf16: bool,
    hidden: Float32,
    base: Float32,
    tokens: Int64,
    logits: Float32,
    scores: Float32,
    confidences: Float32,
    low: int,
    high: int,
) -> None:
    """From streams of blocks ``low .. high`` to their tokens.

    The six results are [A, B, D], twice [A, B, V], [A, 1 + B] with its first column given, twice [A, B].
    """
    gain, eps, place, embed, markov, confidence = head
    num_rows, width, vocabulary = streams.shape[0], hidden.shape[2], base.shape[2]
    states = hidden[low:high].reshape(num_rows, width)
    normed = np.empty_like(states)
    collapse_kernel(streams, pre, states, bf16, 0, num_rows)
    rms_norm_kernel(states, gain, eps, normed, bf16, 0, num_rows)
    products = base[low:high].reshape(num_rows, vocabulary)
    linear_kernel(normed, place, products, vocabulary, False, 0, num_rows)
    markov_kernel(
        base[low:high], hidden[low:high], embed, markov, confidence,
        tokens[low:high], logits[low:high], scores[low:high],
    )  # fmt: skip
    sigmoid_kernel(scores[low:high].reshape(-1), confidences[low:high].reshape(-1), 0, num_rows)


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
        numbers, window = (shape.noise_token_id, ring), shape.window
        bound, seen = [self.layers[layer] for layer in layers], tuple(pool.place for pool in pools)
        ends, cos, sin = _head_of(head), rotary.cos.numpy(), rotary.sin.numpy()
        flags, table = (self.round_caches, self.bf16), embedding.numpy()
        found = hidden, base, tokens, logits, scores, confidences
        step, outside = ROWS_PER_TASK // size, list[int]()

        def part(low: int, high: int) -> None:
            """Some blocks go through everything alone, as many at once as experts take rows."""
            for first in range(low, high, step):
                last = min(first + step, high)
                blocks, num_rows = last - first, (last - first) * size
                x = np.empty((num_rows, shape.num_streams, width), np.float32)
                pre, at = np.empty(x.shape[:2], np.float32), np.empty(num_rows, np.int64)
                records, places = np.empty(blocks * window, np.int64), np.empty((num_rows, window), np.int64)
                own = np.empty((num_rows, size), np.int64)
                contexts = np.empty((len(pools), len(records), pools[0].width), np.float32)
                rows = x, pre, at, records, places, own
                outside.append(begin_kernel(anchors, table, numbers, seen, rows, contexts, first, last))
                for layer, context in zip(bound, contexts, strict=True):
                    out = np.empty_like(x), np.empty_like(pre)
                    window_layer_kernel(
                        x, pre, *layer, (cos, sin, at), context, places, own, *flags, *out, 0, num_rows
                    )
                    x, pre = out
                end_kernel(x, pre, ends, self.bf16, *found, first, last)

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
