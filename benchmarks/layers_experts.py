"""Section of ``gpu_layers.py``: routed experts on MXFP4 weights at the released shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import fast_references as reference
import torch
from layers_common import DEVICE, Report, against, timed

from deepinfer.kernels.gpu import hopper_experts
from deepinfer.kernels.gpu.expert_gemm import ExpertTile, combine, inner_products, outer_products
from deepinfer.kernels.gpu.expert_groups import plan_tiles
from deepinfer.kernels.gpu.fast_experts import RoutedExperts, routed
from deepinfer.kernels.gpu.mxfp4_weights import Mxfp4Weights, pack_codes

EXPERTS, WIDTH, INNER, CHOSEN, DISTINCT = 384, 5120, 2304, 6, 8
DECODE = (ExpertTile(64, 16, 256, 3, 4), ExpertTile(64, 16, 256, 2, 4))
PREFILL = (ExpertTile(128, 128, 256, 2, 8), ExpertTile(64, 32, 256, 3, 4))


def _launch(tile: ExpertTile) -> None:
    def fake(n: int, k: int) -> Mxfp4Weights:
        words = torch.empty(EXPERTS, n, k // 8, dtype=torch.int32)
        return Mxfp4Weights(words, torch.empty(EXPERTS, k // 32, n, dtype=torch.uint8))

    x, ids = torch.empty(16, WIDTH, dtype=torch.bfloat16), torch.zeros(16, CHOSEN, dtype=torch.int64)
    tiles, shares = plan_tiles(ids, EXPERTS, tile.pairs), torch.empty(16, CHOSEN)
    h = inner_products(x, tiles, shares, fake(INNER, WIDTH), fake(INNER, WIDTH), 10.0, tile)
    combine(outer_products(h, tiles, fake(WIDTH, INNER), tile), None, CHOSEN)
    if tile.pairs == hopper_experts.PAIRS:
        h = hopper_experts.inner_products(x, tiles, shares, fake(INNER, WIDTH), fake(INNER, WIDTH), 10.0)
        hopper_experts.outer_products(h, tiles, fake(WIDTH, INNER))


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles."""
    return ((_launch, (tile,)) for tile in (*DECODE, *PREFILL))


class Layer:
    """Random experts: a few different ones, repeated in memory of their own."""

    def __init__(self) -> None:
        """Draw and pack them."""
        generator = torch.Generator(DEVICE).manual_seed(3)
        self.plain, packed = [], []
        for shape in ((INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)):
            codes, scales = reference.random_mxfp4(generator, DISTINCT, *shape)
            one = pack_codes(codes, scales)
            times = EXPERTS // DISTINCT
            packed.append(Mxfp4Weights(one.words.repeat(times, 1, 1), one.scales.repeat(times, 1, 1)))
            self.plain.append(reference.decode_mxfp4(codes, scales))
        self.gate, self.up, self.down = packed

    def pairs(
        self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor, tile: ExpertTile
    ) -> torch.Tensor:
        """Outer values of every pair."""
        tiles = plan_tiles(ids, EXPERTS, tile.pairs)
        h = inner_products(x, tiles, shares, self.gate, self.up, 10.0, tile)
        return outer_products(h, tiles, self.down, tile)


def _draw(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    x = torch.randn(rows, WIDTH, device=DEVICE).to(torch.bfloat16)
    ids = torch.rand(rows, EXPERTS, device=DEVICE).topk(CHOSEN).indices.sort().values
    return x, ids, torch.rand(rows, CHOSEN, device=DEVICE)


def _gluon(report: Report, layer: Layer) -> None:
    """Kernels for Hopper chips against Triton's: bits on 8,192 rows, times of both products."""
    x, ids, shares = _draw(8192)
    tiles = plan_tiles(ids, EXPERTS, 128)
    triton = ExpertTile(128, 128, 256, 2, 8)

    def check() -> dict[str, int]:
        inner = hopper_experts.inner_products(x, tiles, shares, layer.gate, layer.up, 10.0)
        wanted = inner_products(x, tiles, shares, layer.gate, layer.up, 10.0, triton)
        outer = hopper_experts.outer_products(wanted, tiles, layer.down)
        small = plan_tiles(ids[:64], EXPERTS, 16)
        few = inner_products(
            x[:64], small, shares[:64], layer.gate, layer.up, 10.0, ExpertTile(64, 16, 256, 3, 4)
        )
        return {
            "inner": int((inner != wanted).sum()),
            "outer": int((outer != outer_products(wanted, tiles, layer.down, triton)).sum()),
            "inner, few": int((few != inner[: 64 * CHOSEN]).sum()),
        }

    report.attempt("experts gluon, unequal to triton", check)
    h = hopper_experts.inner_products(x, tiles, shares, layer.gate, layer.up, 10.0)
    flop = 8192 * CHOSEN * 2 * WIDTH * INNER
    for name, call, part in (
        ("inner", lambda: hopper_experts.inner_products(x, tiles, shares, layer.gate, layer.up, 10.0), 2),
        ("outer", lambda: hopper_experts.outer_products(h, tiles, layer.down), 1),
        ("inner triton", lambda: inner_products(x, tiles, shares, layer.gate, layer.up, 10.0, triton), 2),
    ):
        report.attempt(f"experts gluon {name}", lambda c=call, p=part: against(timed([c], 2), 0.0, flop * p))


def run(report: Report) -> None:
    """Errors, rows, times."""
    layer = Layer()
    packed = RoutedExperts(layer.gate, layer.up, layer.down)
    x, ids, shares = _draw(64)
    wanted = reference.expert_outputs(x[:8], ids[:8] % DISTINCT, shares[:8], *layer.plain, 10.0)[1]
    whole = layer.pairs(x, ids, shares, DECODE[0])
    report.attempt("experts error", lambda: reference.relative(whole[: 8 * CHOSEN], wanted))
    layer.plain = []
    for tile in (*DECODE, *PREFILL):

        def rows(tile: ExpertTile = tile) -> dict[str, int]:
            unequal = int((layer.pairs(x, ids, shares, tile) != whole).sum())
            for low, high in ((5, 6), (16, 32)):
                part = layer.pairs(x[low:high], ids[low:high], shares[low:high], tile)
                unequal += int((part != whole[low * CHOSEN : high * CHOSEN]).sum())
            return {"unequal": unequal}

        report.attempt(f"experts rows {astuple(tile)}", rows)
    for num_rows in (64, 8192, 16, 256, 1):
        x, ids, shares = _draw(num_rows)
        used = int(ids.unique().numel())
        per_expert = (layer.gate.num_bytes + layer.up.num_bytes + layer.down.num_bytes) / EXPERTS
        flop = num_rows * CHOSEN * 6 * WIDTH * INNER
        num_bytes = used * per_expert + num_rows * WIDTH * 2 * 2
        for tile in PREFILL if num_rows > 1000 else DECODE:

            def speed(
                tile: ExpertTile = tile,
                x: Any = x,
                ids: Any = ids,
                shares: Any = shares,
                num_bytes: float = num_bytes,
                flop: float = flop,
                used: int = used,
            ) -> dict[str, Any]:
                repeats = 3 if len(x) > 1000 else 10
                tiles = plan_tiles(ids, EXPERTS, tile.pairs)
                h = inner_products(x, tiles, shares, layer.gate, layer.up, 10.0, tile)
                inner = timed(
                    [lambda: inner_products(x, tiles, shares, layer.gate, layer.up, 10.0, tile)], repeats
                )
                outer = timed([lambda: outer_products(h, tiles, layer.down, tile)], repeats)
                plan = timed([lambda: plan_tiles(ids, EXPERTS, tile.pairs)], 3)
                whole = timed([lambda: combine(layer.pairs(x, ids, shares, tile), None, CHOSEN)], repeats)
                parts = {
                    "inner_us": inner * 1e6,
                    "outer_us": outer * 1e6,
                    "plan_us": plan * 1e6,
                    "experts": used,
                }
                return against(whole, num_bytes, flop) | {key: round(v, 1) for key, v in parts.items()}

            report.attempt(f"experts speed rows={num_rows} {astuple(tile)}", speed)

        def op(
            x: Any = x, ids: Any = ids, shares: Any = shares, b: float = num_bytes, f: float = flop
        ) -> Any:
            whole = routed(x, ids, shares, packed, 10.0)
            part = routed(x[:64], ids[:64], shares[:64], packed, 10.0)
            calls = [lambda: combine(routed(x, ids, shares, packed, 10.0), None, CHOSEN)]
            unequal = int((part != whole[: len(part)]).sum())
            return against(timed(calls, 3 if len(x) > 1000 else 10), b, f) | {"unequal": unequal}

        report.attempt(f"experts op rows={num_rows}", op)
    _gluon(report, layer)
