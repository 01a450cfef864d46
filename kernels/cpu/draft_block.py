"""Drafting from anchors to tokens in one call of compiled code, keeping contexts in another.

At batch 1 a block is two rows, and a hand-over between Python and compiled code costs as much as a third of a
layer of it. Nothing here computes: the kernels of ``draft_rows``, ``window_layers`` and ``draft_decode`` are
called one after the other. Layers, pools and the head are tables of numbers (``bound_layer``), so that there
is little to hand over, and a layer is compiled once for all of them.

Legend: A blocks of B rows, L layers, D model width, W window, C latent width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from numba import carray  # type: ignore[attr-defined]

from deepinfer.kernels.cpu.bound_layer import (
    float_at,
    floats,
    floats_at,
    integers,
    numbers_of,
    octets,
    place_at,
)
from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.draft_chains import DraftChains, contexts_cost, markov_kernel, rows_kernel
from deepinfer.kernels.cpu.experts import ROWS_PER_TASK
from deepinfer.kernels.cpu.fma_tile import TILE_ROWS
from deepinfer.kernels.cpu.hyper import collapse_kernel
from deepinfer.kernels.cpu.linear import PackedLinear, Place, linear_kernel
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.pointwise import sigmoid_kernel
from deepinfer.kernels.cpu.record_kernels import Place as Pool
from deepinfer.kernels.cpu.record_kernels import load_place, store_place
from deepinfer.kernels.cpu.records import BoundRecords, refuse_outside
from deepinfer.kernels.cpu.window_layer import contexts_kernel, window_layer
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, WindowLayer
from deepinfer.kernels.operands import Rotary

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Anchors = tuple[Int64, Int64, Int64, Int64]
"""Golden tokens, positions, slots and first contexts, each [A]."""
Found = tuple[Float32, Float32, Int64, Float32, Float32, Float32]
"""Hidden states [A, B, D], base logits, tokens [A, 1 + B], logits, scores and confidences."""
Head = tuple[Float32, np.float32, Place, Float32, Place, Place]
"""Gain and eps of the norm; head; embedding and head of the Markov term; confidence."""


@inlined
def _pool_at(line: Int64) -> Pool:
    """The pool that numbers [11] stand for."""
    layout = carray(integers(line[4]), (line[5],))
    codes, factors = (carray(octets(line[0]), (line[1],)), carray(octets(line[2]), (line[3],)))
    return codes, factors, layout, floats_at(line, 6), line[8], line[9], line[10]


@inlined
def _head_at(line: Int64) -> Head:
    embed = carray(floats(line[8]), (line[9], line[10]))
    return (
        floats_at(line, 0),
        float_at(line, 2),
        place_at(line, 3),
        embed,
        place_at(line, 11),
        place_at(line, 16),
    )


@inlined
def _decode(
    streams: Float32, pre: Float32, head: Head, bf16: bool, found: Found, low: int, high: int
) -> None:
    """From streams of blocks ``low .. high`` to their tokens."""
    gain, eps, place, embed, markov, confidence = head
    hidden, base, tokens, logits, scores, confidences = found
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
def draft_kernel(
    anchors: Anchors,
    embedding: Float32,
    numbers: tuple[int, int, int, int],
    rotary: tuple[Float32, Float32],
    layers: Int64,
    pools: Int64,
    head: Int64,
    flags: tuple[bool, bool],
    found: Found,
    low: int,
    high: int,
) -> int:
    """Blocks ``low .. high`` from anchors to tokens; how many context records do not exist.

    As many blocks at once as experts take rows go through everything. ``numbers`` are the noise token, the
    positions of a ring, W and the streams; the first column of tokens is given.
    """
    golden, positions, slots, lows = anchors
    noise, ring, window, num_streams = numbers
    cos, sin = rotary
    size, width = found[0].shape[1], embedding.shape[1]
    step, num_outside = ROWS_PER_TASK // size, 0
    for first in range(low, high, step):
        last = min(first + step, high)
        blocks, num_rows = last - first, (last - first) * size
        streams = np.empty((num_rows, num_streams, width), np.float32)
        pre, at = np.empty((num_rows, num_streams), np.float32), np.empty(num_rows, np.int64)
        records, places = np.empty(blocks * window, np.int64), np.empty((num_rows, window), np.int64)
        own = np.empty((num_rows, size), np.int64)
        rows_kernel(
            golden[first:last], positions[first:last], slots[first:last], lows[first:last],
            embedding, noise, ring, streams, pre, at, records, places, own,
        )  # fmt: skip
        for number in range(len(layers)):
            context, outside = load_place(_pool_at(pools[number]), records)
            num_outside += outside
            out, next_pre = np.empty_like(streams), np.empty_like(pre)
            table = (cos, sin, at)
            window_layer(
                streams, pre, layers[number], table, context, places, own, flags[0], flags[1], out, next_pre
            )
            streams, pre = out, next_pre
        _decode(streams, pre, _head_at(head), flags[1], found, first, last)
    return num_outside


@kernel
def keep_kernel(
    features: Float32,
    projection: Place,
    gain: Float32,
    eps: np.float32,
    layers: Int64,
    rotary: tuple[Float32, Float32, Int64],
    flags: tuple[bool, bool],
    pools: Int64,
    records: Int64,
    out: Float32,
    low: int,
    high: int,
) -> int:
    """``contexts_kernel``, and its latents stored; how many records do not exist."""
    contexts_kernel(features, projection, gain, eps, layers, rotary, flags[0], flags[1], out, low, high)
    num_outside = 0
    for number in range(len(pools)):
        num_outside += store_place(_pool_at(pools[number]), out[number], records, low, high)
    return num_outside


class DraftBlocks(DraftChains):
    """``DraftChains`` and longer ones of them: ``draft_block`` and ``keep_contexts``."""

    heads: WeakKeyDictionary[DraftHead, Int64]

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
    ) -> Callable[[], DraftOutput]:
        """See ``Ops``; helpers draft while the caller goes on."""
        count, size, width = len(golden), shape.size, embedding.shape[1]
        if size > ROWS_PER_TASK:
            raise ValueError(f"draft_block: blocks of {size} rows, at most {ROWS_PER_TASK} go")
        vocabulary = head.head.num_outputs
        hidden = np.empty((count, size, width), np.float32)
        base, logits = np.empty((2, count, size, vocabulary), np.float32)
        scores, confidences = np.empty((2, count, size), np.float32)
        tokens = np.empty((count, 1 + size), np.int64)
        anchors = golden.numpy(), positions.numpy(), slots.numpy(), low.numpy()
        tokens[:, 0] = anchors[0]
        numbers = shape.noise_token_id, ring, shape.window, shape.num_streams
        found = hidden, base, tokens, logits, scores, confidences
        lines = self.table_of(layers), _lines_of(pools), self._line_of(head)
        cos, sin, flags = rotary.cos.numpy(), rotary.sin.numpy(), (self.round_caches, self.bf16)
        given = anchors, embedding.numpy(), numbers, (cos, sin), *lines, flags, found
        outside: list[int] = []
        end = self.workers.begin(count, lambda low, high: outside.append(draft_kernel(*given, low, high)))

        def drafted() -> DraftOutput:
            end()
            refuse_outside("draft_block", sum(outside), pools[0].layout)
            flat = hidden.reshape(count * size, width)
            return DraftOutput(*(torch.from_numpy(x) for x in (flat, *found[1:])))

        return drafted

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
        out = np.empty((len(layers), len(rows), pools[0].width), np.float32)
        given = (
            rows, projection.place, gain.numpy(), np.float32(eps), self.table_of(layers), table,
            (self.round_caches, self.bf16), _lines_of(pools), index, out,
        )  # fmt: skip
        outside: list[int] = []
        self.workers.run(
            len(rows),
            TILE_ROWS,
            lambda low, high: outside.append(keep_kernel(*given, low, high)),
            item_cost=contexts_cost(projection, layers),
        )
        refuse_outside("keep_contexts", sum(outside), pools[0].layout)

    def _line_of(self, head: DraftHead) -> Int64:
        """The numbers of a head, which are remembered while it lives."""
        found = self.heads.get(head)
        if found is None:
            places = head.head.place, head.embed.numpy(), head.markov.place, head.confidence.place
            bound = head.gain.numpy(), np.float32(head.eps), *places
            found = self.heads[head] = np.array(list(numbers_of(bound)), np.int64)
        return found


def _lines_of(pools: Sequence[BoundRecords]) -> Int64:
    """A table of pools."""
    return np.array([pool.line for pool in pools], np.int64)
