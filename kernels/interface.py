"""The ops of the model: one name, one meaning; every kernel set implements this protocol.

Legend: T packed rows, R sequences, D model width, S residual streams, H heads, C latent width, Hi and Ci
index heads and width, E experts, k experts a token, V vocabulary, P pool rows, K and N inputs and outputs
of a linear.

All activations are float32 tensors. In profile fast (``bf16``) every op rounds its result to bfloat16 where
model.md section 0.3 says so; the rounded values still travel as float32. An op never changes its inputs,
except those whose name ends in an underscore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from deepinfer.kernels.chain_interface import ChainOps
from deepinfer.kernels.operands import BoundRecords, PackedWeight
from deepinfer.kernels.record_interface import RecordOps
from deepinfer.kernels.turn_interface import TurnOps

LoadExpert = Callable[[int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Expert number -> gate [I, D], up [I, D], down [D, I], float32."""


class Ops(ChainOps, RecordOps, TurnOps, Protocol):
    """A kernel set bound to an arithmetic profile."""

    @property
    def name(self) -> str:
        """Kernel set, as reports print it."""

    @property
    def packing(self) -> str:
        """How weights are packed: kernel sets of one packing can share them."""

    @property
    def bf16(self) -> bool:
        """Whether activations are rounded to bfloat16 (profile fast)."""

    @property
    def torch_threads(self) -> int:
        """Threads that torch should use while these ops run; 1 where torch only moves data."""

    @property
    def device(self) -> torch.device:
        """Where operands lie and results appear."""

    @property
    def can_be_recorded(self) -> bool:
        """Whether a step may be recorded: ops do the same for the same shapes, and nobody watches them."""

    @property
    def round_caches(self) -> bool:
        """Whether ``mxfp8_``, ``mxfp4_`` and ``fp4_`` round; off is for comparisons with references."""

    def pack_linear(self, weight: torch.Tensor) -> PackedWeight:
        """Prepare float32 [N, K], or [G, N, K] for a grouped linear."""

    def pack_experts(self, num_experts: int, load: LoadExpert) -> PackedWeight:
        """Prepare the experts of one layer, loaded one at a time."""

    def linear(self, x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
        """[T, G * K] -> [T, G * N], a rounded activation."""

    def linear_fp32(self, x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
        """As ``linear``, never rounded: router, ratio-2 compressor, heads."""

    def rms_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """[T, D] -> [T, D]: ``x * rsqrt(mean(x**2) + eps) * gain``."""

    def rotate_(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        inverse: bool = False,
    ) -> torch.Tensor:
        """Rotate the last channels of [T, heads, width] in place (model.md section 3.4)."""

    def mxfp8_(self, x: torch.Tensor) -> torch.Tensor:
        """Round trip through MXFP8 records in place, groups of 32 (section 8.2)."""

    def mxfp4_(self, x: torch.Tensor) -> torch.Tensor:
        """Round trip through MXFP4 records in place, groups of 32 (section 8.3)."""

    def fp4_(self, x: torch.Tensor) -> torch.Tensor:
        """Round trip through FP4 records with e4m3 scales in place, groups of 16 (section 8.4)."""

    def bind_records(self, kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> BoundRecords:
        """Check buffers of packed cache records once, for all stores and loads (section 8).

        Args:
            kind: "mxfp8" (d = W, s = W/32), "mxfp4" (d = W/2, s = W/32), "fp4" (d = W/2, s = W/16) or
                "exact" (d = 4 W, s = 0: float32 as it is, little-endian, every bit kept).
            width: W values of a record.
            data: uint8 [B, S, d]; record r lies at [r // S, r % S]. Last axis contiguous.
            scales: uint8 [B, S, s]; may be a view of the same buffer as ``data``.
        """

    def store_records(self, where: BoundRecords, values: torch.Tensor, rows: torch.Tensor) -> None:
        """Quantise values float32 [T, W] and write row t as record ``rows[t]``.

        Args:
            where: bound by this kernel set.
            values: a group that holds NaN or infinity is read back as NaN ("exact": as it is).
            rows: int64 [T], all different; -1 skips the row.
        """

    def load_records(
        self, where: BoundRecords, rows: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Decode records ``rows`` int64 [n] to float32 [n, W], into ``out`` if given; -1 gives zeros."""

    def copy_rows_(
        self, target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """Copy rows of bytes as they are: cache blocks, or records with their scales.

        Args:
            target, source: uint8 [n, b], last axis contiguous; may be the same buffer.
            to: int64 [k], rows of ``target``, all different; -1 skips a pair.
            rows: int64 [k], the row of ``source`` for each; -1 skips a pair. None is also a target.

        Returns:
            ``target``.
        """

    def hc_mix(
        self,
        streams: torch.Tensor,
        fn: PackedWeight,
        base: torch.Tensor,
        scale: torch.Tensor,
        iterations: int,
        hc_eps: float,
        rms_eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[T, S, D] -> pre [T, S], post [T, S], comb [T, S, S] of one site (section 2.2)."""

    def hc_collapse(self, streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        """[T, S, D], [T, S] -> [T, D]."""

    def hc_expand(
        self, streams: torch.Tensor, out: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """[T, S, D], [T, D] -> [T, S, D]."""

    def pool_pairs(self, values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Two [J, 2, C] -> [J, C], the ratio-2 compressor (section 3.3)."""

    def index_select(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        keys: torch.Tensor,
        base: torch.Tensor,
        counts: torch.Tensor,
        longest: int,
        top: int,
        num_blocks: int,
        block_size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries [T, top] and candidate blocks [T, num_blocks] among all visible entries.

        Sections 4.3 to 4.5. No row's count exceeds ``longest``, so that nobody has to ask the device; how
        much larger it is moves no bit.
        """

    def index_select_within(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        keys: torch.Tensor,
        base: torch.Tensor,
        counts: torch.Tensor,
        blocks: torch.Tensor,
        block_size: int,
        top: int,
    ) -> torch.Tensor:
        """Entries [T, top] among those of the candidate blocks."""

    def sparse_attention(
        self,
        q: torch.Tensor,
        window: torch.Tensor,
        window_slots: torch.Tensor,
        main: torch.Tensor,
        main_slots: torch.Tensor,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        """[T, H, C] over pool slots -> [T, H, C] (section 3.6)."""

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor, num_selected: int, normalise: bool, factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, E] -> expert ids [T, k] ascending and weights [T, k] (section 5.1)."""

    def moe(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        experts: PackedWeight,
        shared: PackedWeight,
        limit: float,
    ) -> torch.Tensor:
        """[T, D] -> [T, D], routed experts ascending, then the shared one (section 5.2)."""

    def engram_gate(
        self, streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """[T, S, D], [T, (S + 1) * D] -> [T, S, D] (section 6.4)."""

    def mean_streams(self, streams: torch.Tensor) -> torch.Tensor:
        """[T, S, D] -> [T, D], sum over ascending streams times 1/S (section 7.1)."""

    def add_fp32(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Element-wise sum, never rounded to bfloat16."""

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """``x * float32(factor)``, a rounded activation."""

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """[T, V] -> [T, V]."""

    def token_logprobs(
        self, logits: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, V], [T] -> log-probabilities [T] float32 and ranks [T] int32."""

    def verify_budget(self, confidences: torch.Tensor, caps: torch.Tensor, total: int) -> torch.Tensor:
        """How many drafts of each sequence a step verifies: those most likely to be reached and accepted.

        Args:
            confidences: float32 [R, B], probability of each draft if those before it are accepted; what lies
                outside 0..1 counts as the nearer end, NaN as 0.
            caps: int64 [R], most drafts of each sequence.
            total: most drafts of all together.

        Returns:
            int64 [R]. Entries are ranked by the product of the confidences up to them, taken in float32 from
            left to right, larger first, ties by the lower sequence, then the lower place. No product grows
            along a block, so the winners of a sequence are its first drafts.
        """

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_p: torch.Tensor,
        top_k: torch.Tensor,
        min_p: torch.Tensor,
        words: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, V], four [R], 32-bit words int64 [R, n] -> ids int64 [R], processed log-probabilities [R].

        Filters and draw: docs/orders.md. ``temperature`` 0 is greedy, lowest id on ties, log-probability 0.
        Off: ``top_p`` 1, ``top_k`` 0 or at least V, ``min_p`` 0. The id is -1 where a row holds NaN, +inf or
        nothing above -inf.
        """

    def random_words(
        self, seeds: torch.Tensor, positions: torch.Tensor, sample_indices: torch.Tensor, num_words: int
    ) -> torch.Tensor:
        """Words of ``kernels.rng`` that choose the tokens at ``positions``: int64 [R] -> [R, num_words]."""

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        """Element-wise logistic function, float32."""
