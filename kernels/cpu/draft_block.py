"""Ops that draft blocks and keep contexts: operands as numbers for the jobs of ``draft_jobs``.

Legend: A blocks of B rows, L layers, D model width, W window, C latent width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.addresses import address_of
from deepinfer.kernels.cpu.bound_layer import numbers_of
from deepinfer.kernels.cpu.draft_chains import DraftChains, contexts_cost
from deepinfer.kernels.cpu.draft_jobs import (
    DRAFT_NUMBERS,
    KEEP_NUMBERS,
    draft_job,
    keep_job,
)
from deepinfer.kernels.cpu.experts import ROWS_PER_TASK
from deepinfer.kernels.cpu.fma_tile import TILE_ROWS
from deepinfer.kernels.cpu.job_threads import perform
from deepinfer.kernels.cpu.linear import PackedLinear
from deepinfer.kernels.cpu.records import BoundRecords, refuse_outside
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, WindowLayer
from deepinfer.kernels.operands import Rotary

Int64 = npt.NDArray[np.int64]


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
        hidden = torch.empty(count * size, width)
        base, logits = torch.empty(count, size, vocabulary), torch.empty(count, size, vocabulary)
        scores, confidences = torch.empty(count, size), torch.empty(count, size)
        tokens = torch.empty(count, 1 + size, dtype=torch.int64)
        found = hidden, base, tokens, logits, scores, confidences
        anchors = tuple(part.contiguous() for part in (golden, positions, slots, low))
        table, line_of_head = self.layers.table(layers), self._line_of(head)
        line = np.array(
            [
                count, *(_address(anchor) for anchor in anchors),
                shape.noise_token_id, ring, shape.window, shape.num_streams,
                _address(embedding), *embedding.shape, *_table_of(rotary),
                address_of(table), len(table), address_of(line_of_head), len(line_of_head),
                self.round_caches, self.bf16, size, width, vocabulary, *(_address(part) for part in found),
                *(pool.address for pool in pools),
            ],
            np.int64,
        )  # fmt: skip
        assert len(line) == DRAFT_NUMBERS + len(layers)
        operands = anchors, embedding, rotary, layers, pools, head, table, line_of_head, found
        end = self.workers.begin(draft_job(), line, count, operands)

        def drafted() -> DraftOutput:
            refuse_outside("draft_block", end(), pools[0].layout)
            return DraftOutput(*found)

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
        rows, index, positions = features.contiguous(), records.contiguous(), rotary.positions.contiguous()
        table, out = self.layers.table(layers), torch.empty(len(layers), len(rows), pools[0].width)
        line = np.array(
            [
                _address(rows), *rows.shape, *projection.place, _address(gain), len(gain),
                np.float32(eps).view(np.int32), *_table_of(rotary), _address(positions), _address(index),
                address_of(table), len(table), _address(out), out.shape[2],
                self.round_caches, self.bf16, TILE_ROWS, *(pool.address for pool in pools),
            ],
            np.int64,
        )  # fmt: skip
        assert len(line) == KEEP_NUMBERS + len(layers)
        job, outside = keep_job(), list[int]()
        self.workers.run(
            -(-len(rows) // TILE_ROWS),
            1,
            lambda low, high: outside.append(perform(job, line, low, high)),
            item_cost=TILE_ROWS * contexts_cost(projection, layers),
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


def _table_of(rotary: Rotary) -> tuple[int, int, int, int]:
    """Addresses of cosines and sines, and the shape of each."""
    num_positions, num_pairs = rotary.cos.shape
    return _address(rotary.cos), _address(rotary.sin), num_positions, num_pairs


def _address(values: torch.Tensor) -> int:
    """Where values lie, from first to last.

    Raises:
        ValueError: they do not lie one behind the other.
    """
    if not values.is_contiguous():
        raise ValueError(f"compiled code is told an address, and {list(values.shape)} values lie apart")
    return values.data_ptr()
