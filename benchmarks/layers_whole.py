"""Section of ``gpu_layers.py``: one whole layer of each kind at the released shape, random weights.

A layer is what ``engine/model/block.py`` does, from streams to streams, with attention and index on packed
caches: both sites, queries, latents and their records, index, attention, output, router, 384 routed experts
in FP4 and the shared one. Kinds: ``window`` (no compressed cache), ``source`` (full scan; writes compressed
and index records), ``reindex`` (scores the candidate blocks), ``reuse`` (takes the choice of another layer).
Floors add up over products and ops: each the larger of its bytes and its operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from layers_attention import BLOCK, BLOCKS, HEADS, INDEX_HEADS, INDEX_WIDTH, PAGE, TOP, WIDTH, WINDOW, Caches
from layers_common import COPY, DEVICE, MATRIX, Report, timed
from layers_experts import CHOSEN, EXPERTS, INNER
from layers_experts import WIDTH as D
from layers_experts import Layer as Experts

from deepinfer.kernels.gpu import packed_ops, record_ops
from deepinfer.kernels.gpu.fast_backend import FastGpuOps
from deepinfer.kernels.gpu.fast_experts import RoutedExperts
from deepinfer.kernels.operands import LowRank, MoeWeights, PagedRecords, Rotary, SiteWeights

LATENT, GROUPS, GROUP_OUT, STREAMS, PAIRS = 1280, 8, 1024, 4, 32
KINDS = ("window", "source", "reindex", "reuse")
DECODE = tuple((rows, context) for context in (4096, 131072) for rows in (1, 16, 64, 256))
PREFILL = ((4096, 4096), (32768, 32768))


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Kernels compile as they come: most of them are those of the other sections."""
    return iter(())


@dataclass(frozen=True)
class Sequences:
    """Rows at the end of their sequences (decode), or all rows of one (prefill)."""

    caches: Caches
    positions: torch.Tensor
    counts: torch.Tensor
    table: torch.Tensor
    near: torch.Tensor
    far: torch.Tensor
    blocks: torch.Tensor

    @classmethod
    def decode(cls, rows: int, context: int) -> Sequences:
        """One row of each sequence."""
        caches = Caches(rows, context, DEVICE, True)
        near, far = caches.slots(rows)
        counts = torch.full((rows,), context, device=DEVICE, dtype=torch.int32)
        blocks = torch.rand(rows, context // BLOCK, device=DEVICE).topk(min(BLOCKS, context // BLOCK)).indices
        blocks = blocks.sort().values.to(torch.int32)
        return cls(caches, (counts - 1).long(), counts, caches.table, near, far, blocks)

    @classmethod
    def prefill(cls, rows: int) -> Sequences:
        """All rows of one sequence; a window of records for every row."""
        caches = Caches(1, rows, DEVICE, True, ring=rows)
        positions = torch.arange(rows, device=DEVICE)
        near = positions[:, None] - WINDOW + 1 + torch.arange(WINDOW, device=DEVICE)
        counts = (positions + 1).to(torch.int32)
        drawn = torch.rand(rows, TOP, device=DEVICE).sort().values
        far = (drawn * counts[:, None]).to(torch.int32)
        drawn = torch.rand(rows, min(BLOCKS, rows // BLOCK), device=DEVICE).sort().values
        blocks = (drawn * ((counts[:, None] + BLOCK - 1) // BLOCK)).to(torch.int32)
        near = torch.where(near < 0, -1, near).to(torch.int32)
        return cls(caches, positions, counts, caches.table.repeat(rows, 1), near, far, blocks)


class Layer:
    """Weights of a layer with every part that any kind needs."""

    def __init__(self) -> None:
        """Draw and pack them."""
        self.ops = ops = FastGpuOps(True, torch.device(DEVICE))
        experts = Experts()
        self.expert_bytes = sum(w.num_bytes for w in (experts.gate, experts.up, experts.down)) / EXPERTS

        def linear(*shape: int) -> Any:
            return ops.pack_linear(
                (torch.randn(shape, device=DEVICE) / shape[-1] ** 0.5).to(torch.bfloat16).float()
            )

        def ones(*shape: int) -> torch.Tensor:
            return torch.ones(shape, device=DEVICE)

        fn = torch.randn(24, STREAMS * D, device=DEVICE) / 50
        self.site = SiteWeights(ops.pack_linear(fn), ones(24), ones(3), ones(D), 20, 1e-6, 1e-20)
        self.query = LowRank(linear(LATENT, D), ones(LATENT), linear(HEADS * WIDTH, LATENT), 1e-20)
        self.wkv, self.compress, self.index_key = (
            linear(WIDTH, D),
            linear(WIDTH, D),
            linear(INDEX_WIDTH, WIDTH),
        )
        self.index_query, self.index_weight = (
            linear(INDEX_HEADS * INDEX_WIDTH, LATENT),
            linear(INDEX_HEADS, D),
        )
        self.wo_a, self.wo_b = (
            linear(GROUPS, GROUP_OUT, HEADS * WIDTH // GROUPS),
            linear(D, GROUPS * GROUP_OUT),
        )
        self.gain, self.index_gain, self.sink = (
            ones(WIDTH),
            ones(INDEX_WIDTH),
            torch.randn(HEADS, device=DEVICE),
        )
        shared = ops.pack_experts(1, lambda _: tuple(w.float() for w in self._shared()))
        routed = RoutedExperts(experts.gate, experts.up, experts.down)
        self.moe = MoeWeights(linear(EXPERTS, D), ones(EXPERTS), routed, shared, CHOSEN, True, 1.5, 10.0)
        angles = torch.rand(131072, PAIRS, device=DEVICE)
        self.angles = angles.cos(), angles.sin()

    def _shared(self) -> tuple[torch.Tensor, ...]:
        shapes = ((INNER, D), (INNER, D), (D, INNER))
        return tuple((torch.randn(s, device=DEVICE) / s[1] ** 0.5).to(torch.bfloat16) for s in shapes)

    def _index(
        self, kind: str, x: torch.Tensor, qr: torch.Tensor, rotary: Rotary, s: Sequences
    ) -> torch.Tensor:
        """Records that attention reads, int32 [T, TOP]."""
        ops, pages = self.ops, PagedRecords(s.caches.index, s.table, PAGE)
        q = ops.linear(qr, self.index_query).view(-1, INDEX_HEADS, INDEX_WIDTH)
        q = ops.mxfp4_(ops.rotate_(q, rotary.cos, rotary.sin, rotary.positions))
        w = ops.linear(x, self.index_weight)
        if kind == "source":
            longest, num_blocks = s.caches.context, min(BLOCKS, s.caches.context // BLOCK)
            chosen, _ = ops.select_records(q, w, pages, s.counts, longest, TOP, num_blocks, BLOCK)
        else:
            chosen = ops.select_records_within(q, w, pages, s.counts, s.blocks, BLOCK, TOP)
        return record_ops.slots_of(pages, chosen)

    def forward(self, kind: str, streams: torch.Tensor, pre: torch.Tensor, s: Sequences) -> torch.Tensor:
        """Streams float32 [T, S, D] after one layer."""
        ops, rotary = self.ops, Rotary(*self.angles, s.positions)
        site = ops.site_input(streams, pre, self.site)
        qr, q = ops.low_rank_query(site.x, self.query, HEADS, rotary)
        latent = ops.rotated_latent(site.x, self.wkv, self.gain, 1e-20, rotary)
        last = s.near[:, -1].long()
        ops.store_records(s.caches.window, latent, last)
        if kind == "source":
            entry = ops.rotated_latent(site.x, self.compress, self.gain, 1e-20, rotary)
            place = s.table[:, -1].long() * PAGE if len(s.table) < 512 else s.positions
            ops.store_records(s.caches.main, entry, place)
            key = ops.rms_norm(ops.linear(entry, self.index_key), self.index_gain, 1e-20)
            ops.store_records(s.caches.index, key, place)
        far = s.far[:, :0] if kind == "window" else s.far
        if kind in ("source", "reindex"):
            far = self._index(kind, site.x, qr, rotary, s)
        mixed = packed_ops.attend(
            q.to(torch.bfloat16), s.caches.window, s.near, s.caches.main, far, self.sink
        ).float()
        out = ops.attention_output(mixed, rotary, self.wo_a, self.wo_b)
        streams = ops.hc_expand(streams, out, site.post, site.comb)
        site = ops.site_input(streams, site.pre, self.site)
        return ops.hc_expand(streams, ops.routed_moe(site.x, self.moe)[0], site.post, site.comb)


def floor(kind: str, rows: int, entries: float, slots: float, used: float, expert_bytes: float) -> float:
    """Seconds: for every product and op the larger of its bytes and its operations."""
    parts: list[tuple[float, float]] = []

    def product(n: float, k: float) -> None:
        parts.append((2 * n * k + 2 * rows * (n + k), 2 * rows * n * k))

    for n, k in ((LATENT, D), (HEADS * WIDTH, LATENT), (WIDTH, D), (D, GROUPS * GROUP_OUT), (EXPERTS, D)):
        product(n, k)
    parts.append((2 * GROUP_OUT * HEADS * WIDTH, 2 * rows * GROUP_OUT * HEADS * WIDTH))
    for n, k in ((2 * INNER, D), (D, INNER)):
        product(n, k)
    parts.append((used * expert_bytes + 4 * rows * D, rows * CHOSEN * 6 * D * INNER))
    parts += 2 * [
        (2 * rows * STREAMS * D * 2, 0.0)
    ]  # each site reads its streams and writes them, in bfloat16
    if kind == "source":
        product(WIDTH, D)
        product(INDEX_WIDTH, WIDTH)
    if kind in ("source", "reindex"):
        product(INDEX_HEADS * INDEX_WIDTH, LATENT)
        product(INDEX_HEADS, D)
        parts.append((entries * 68, rows * entries * 0 + 2 * entries * INDEX_HEADS * INDEX_WIDTH))
    parts.append((slots * 288 + 4 * rows * HEADS * WIDTH, 4 * slots * HEADS * WIDTH))
    return sum(max(num_bytes / COPY, flop / MATRIX) for num_bytes, flop in parts)


def _case(report: Report, layer: Layer, kind: str, rows: int, context: int, s: Sequences) -> None:
    streams = torch.randn(rows, STREAMS, D, device=DEVICE).to(torch.bfloat16).float()
    pre = torch.full((rows, STREAMS), 0.25, device=DEVICE)

    def speed() -> dict[str, float]:
        seconds = timed([lambda: layer.forward(kind, streams, pre, s)], 1 if rows > 1000 else 4)
        visible = float(s.counts.long().sum())
        entries = visible if kind == "source" else float(s.counts.clamp(max=BLOCKS * BLOCK).long().sum())
        far = 0.0 if kind == "window" else float(s.counts.clamp(max=TOP).long().sum())
        slots = far + float(s.counts.clamp(max=WINDOW).long().sum())
        used = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** rows)
        least = floor(kind, rows, entries, slots, used, layer.expert_bytes)
        out = layer.forward(kind, streams, pre, s)
        return {
            "us": round(seconds * 1e6, 1),
            "floor_us": round(least * 1e6, 1),
            "ratio": round(least / seconds, 3),
            "finite": bool(torch.isfinite(out).all()),
        }

    name = f"prefill {rows}" if rows == context else f"decode {rows} at {context}"
    report.attempt(f"layer {kind}, {name}", speed)


def run(report: Report) -> None:
    """All kinds, all shapes."""
    layer = Layer()
    for rows, context in (*DECODE, *PREFILL):
        if report.left() < 0:
            return
        torch.manual_seed(rows)
        sequences = Sequences.prefill(rows) if rows == context else Sequences.decode(rows, context)
        for kind in KINDS:
            _case(report, layer, kind, rows, context, sequences)
        del sequences
        torch.cuda.empty_cache()
