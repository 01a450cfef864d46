"""Section of ``gpu_layers.py``: the ops of profile fast as the engine calls them; do rows keep their bits?

A call on many rows against calls on some of them, across every edge of a bucket of rows, and against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import fast_references as reference
import torch
from attention_cases import Cases, rows_of, separate
from layers_common import DEVICE, Report

from deepinfer.kernels.gpu import pool_attention, site_turns, turned_attention
from deepinfer.kernels.gpu.expert_gemm import combine
from deepinfer.kernels.gpu.fast_backend import FastGpuOps
from deepinfer.kernels.gpu.fast_linear import FastLinear, linear
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.site_rows import site_row
from deepinfer.kernels.gpu.site_turns import Pairs
from deepinfer.kernels.operands import SiteInput, SiteWeights

ROWS = 2100
PARTS = (
    (0, 1),
    (3, 19),
    (4, 21),
    (5, 69),
    (6, 71),
    (7, 519),
    (8, 521),
    (9, 2058),
    *((1, 1 + n) for n in (128, 129, 256, 257)),
)
WIDTHS = ((1280, 5120), (512, 5120), (2304, 5120))
SHORT = ((256, 256), (512, 128), (4096, 256), (4096, 32), (256, 512))
"""Of the bundled model, and one between."""
GROUPS, GROUP_OUT, GROUP_IN = 8, 1024, 4096
"""The first product behind attention."""


def _launch(outputs: int, inputs: int, exact: bool, num_rows: int, groups: int = 1) -> None:
    place = torch.device("cpu")
    parts = torch.empty(groups, outputs if exact else 3 * outputs, inputs, dtype=torch.bfloat16)
    weight = FastLinear(parts, 1 if exact else 3, inputs)
    for bf16 in (False, True):
        workspace = Workspace.on(place, 1 << 22, 1 << 14)
        linear(torch.empty(num_rows, groups * inputs), weight, workspace, bf16)


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The products; the rest are few launches."""
    for outputs, inputs in WIDTHS:
        for num_rows in (1, 17, 65, 129, 257, 513, 2100):
            yield _launch, (outputs, inputs, True, num_rows)
    for num_rows in (1, 17, 65, 129, 257, 513, 2100):
        yield _launch, (24, 20480, False, num_rows)
        yield _launch, (GROUP_OUT, GROUP_IN, True, num_rows, GROUPS)


def _unequal(call: Callable[[slice], tuple[torch.Tensor, ...]], parts: Any = PARTS) -> int:
    whole = call(slice(0, ROWS))
    return sum(
        int((a != b[low:high]).sum())
        for low, high in parts
        for a, b in zip(call(slice(low, high)), whole, strict=True)
    )


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(torch.bfloat16).float()


def _differ(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one.contiguous().view(torch.int32) != other.contiguous().view(torch.int32)).sum())


def _turned(ops: FastGpuOps, packed: bool, num_heads: int, width: int, num_pairs: int) -> dict[str, int]:
    """Attention with its rotations against three launches, 1 to 64 rows; the control has other angles."""
    cases, unequal = Cases(ops, 3), 0
    seen = cases.seen(packed, 64, width, 128, 500)
    q, sink, rotary = cases.normal(64, num_heads, width), cases.normal(num_heads), cases.rotary(64, num_pairs)

    def attend(rows: slice, shift: int) -> torch.Tensor:
        turn = replace(rotary, positions=rotary.positions[rows] + shift)
        return turned_attention.attend(q[rows].clone(), rows_of(seen, rows), sink, turn, ops._workspace)

    few, pool_attention._FEW = pool_attention._FEW, 0  # and no rows asked for ahead
    wanted = separate(ops, q, seen, sink, rotary)
    pool_attention._FEW = few
    for count in range(1, 65):
        rows = slice(64 - count, 64)
        unequal += _differ(attend(rows, 0), wanted[rows])
    return {"unequal": unequal, "control": _differ(attend(slice(0, 64), 1), wanted)}


def run(report: Report) -> None:
    """All ops."""
    torch.manual_seed(2)
    ops = FastGpuOps(True, torch.device(DEVICE))

    def product(outputs: int, inputs: int, exact: bool) -> dict[str, float]:
        weight = torch.randn(outputs, inputs, device=DEVICE)
        packed = ops.pack_linear(weight.to(torch.bfloat16).float() if exact else weight)
        x = _values(ROWS, inputs)
        wanted = x[:8].double() @ (packed.parts[0].double() if exact else weight.double()).T
        error = reference.relative(ops.linear_fp32(x[:8], packed), wanted)
        return {"error": error, "unequal": _unequal(lambda rows: (ops.linear(x[rows], packed),))}

    for outputs, inputs in WIDTHS:
        report.attempt(f"ops linear {outputs}x{inputs}", lambda o=outputs, i=inputs: product(o, i, True))
    for outputs, inputs in SHORT:
        report.attempt(f"ops linear {outputs}x{inputs}", lambda o=outputs, i=inputs: product(o, i, True))
    report.attempt("ops linear 24x20480, three parts", lambda: product(24, 20480, False))
    report.attempt("ops linear 24x1024, three parts", lambda: product(24, 1024, False))

    def groups() -> dict[str, float]:
        weight = _values(GROUPS, GROUP_OUT, GROUP_IN)
        packed, x = ops.pack_linear(weight), _values(ROWS, GROUPS * GROUP_IN)
        wanted = torch.einsum("tgk,gnk->tgn", x[:8].view(8, GROUPS, GROUP_IN).double(), weight.double())
        error = reference.relative(ops.linear_fp32(x[:8], packed), wanted.flatten(1))
        return {"error": error, "unequal": _unequal(lambda rows: (ops.linear(x[rows], packed),))}

    report.attempt(f"ops linear {GROUPS}x{GROUP_OUT}x{GROUP_IN}, groups", groups)

    def site() -> dict[str, float]:
        streams, pre, gain = _values(ROWS, 4, 5120), torch.rand(ROWS, 4, device=DEVICE), _values(5120)
        fn, base = (
            ops.pack_linear(torch.randn(24, 20480, device=DEVICE) / 150),
            torch.randn(24, device=DEVICE),
        )
        scale = torch.randn(3, device=DEVICE)
        weights = SiteWeights(fn, base, scale, gain, iterations=20, hc_eps=1e-6, rms_eps=1e-20)
        collapsed = (streams[:8].double() * pre[:8, :, None].double()).sum(1)
        wanted = collapsed * collapsed.square().mean(1, keepdim=True).rsqrt() * gain.double()

        def parts(rows: slice) -> tuple[torch.Tensor, ...]:
            found = ops.site_input(streams[rows], pre[rows], weights)
            return found.x, found.pre, found.post, found.comb

        return {"error": reference.relative(parts(slice(0, 8))[0], wanted), "unequal": _unequal(parts)}

    report.attempt("ops site 4x5120: input and mixes", site)

    def turn(width: int) -> dict[str, int]:
        streams, gain = _values(ROWS, 4, width), _values(width)
        mixes = [torch.rand(ROWS, *rest, device=DEVICE) for rest in ((4,), (4,), (4, 4))]
        routed, shared = _values(6 * ROWS, width).to(torch.bfloat16), _values(ROWS, width)

        def parts(rows: slice) -> tuple[torch.Tensor, ...]:
            low, high, _ = rows.indices(ROWS)
            of_rows = [mix[rows] for mix in mixes]
            entered = SiteInput(gain, lambda: (of_rows[0], of_rows[1], of_rows[2]))
            pairs = Pairs(routed[6 * low : 6 * high], shared[rows], 6)
            alone = site_turns.expanded(streams[rows], pairs, entered)
            return *site_turns.turned(streams[rows], pairs, entered, gain, 1e-6), alone

        added = combine(routed, shared, 6, torch.float32)
        expanded = ops.hc_expand(streams, added, mixes[1], mixes[2])
        wanted = expanded, site_row(expanded, mixes[0], gain, 1e-6, True), expanded
        unlike = sum(not torch.equal(a, b) for a, b in zip(parts(slice(0, ROWS)), wanted, strict=True))
        return {"unlike parts": unlike, "unequal": _unequal(parts)}

    for width in (256, 512):
        report.attempt(f"ops turn 4x{width}", lambda w=width: turn(w))

    def sums() -> dict[str, int]:
        x, gain, eps = _values(ROWS, 5120), torch.randn(5120, device=DEVICE), 1e-20
        streams, kv, gains = _values(ROWS, 4, 512), _values(ROWS, 2560), torch.randn(4, 512, device=DEVICE)
        fn, base = ops.pack_linear(torch.randn(24, 2048, device=DEVICE) / 50), torch.randn(24, device=DEVICE)
        scale, logits = torch.randn(3, device=DEVICE), torch.randn(ROWS, 12928, device=DEVICE)
        targets = torch.randint(0, 12928, (ROWS,), device=DEVICE)
        return {
            "norm": _unequal(lambda rows: (ops.rms_norm(x[rows], gain, eps),)),
            "mix": _unequal(lambda rows: ops.hc_mix(streams[rows], fn, base, scale, 20, 1e-6, eps)),
            "engram": _unequal(lambda rows: (ops.engram_gate(streams[rows], kv[rows], gains, eps),)),
            "logprobs": _unequal(lambda rows: ops.token_logprobs(logits[rows], targets[rows])),
        }

    report.attempt("ops sums over a row, unequal", sums)

    def attention() -> dict[str, float]:
        q, pool, sink = _values(ROWS, 64, 512), _values(9000, 512), torch.randn(64, device=DEVICE)
        near = torch.randint(-1, 9000, (ROWS, 128), device=DEVICE)
        far = torch.randint(-1, 9000, (ROWS, 512), device=DEVICE)
        few = ops.sparse_attention(q[:4], pool, near[:4], pool, far[:4], sink)
        wanted = reference.attention(q[:4], pool, near[:4], pool, far[:4], sink)
        unequal = _unequal(
            lambda r: (ops.sparse_attention(q[r], pool, near[r], pool, far[r], sink),), PARTS[:5]
        )
        return {"error": reference.relative(few, wanted), "unequal": unequal}

    report.attempt("ops sparse_attention", attention)
    for size in ((4, 128, 16), (20, 96, 4), (64, 256, 32), (64, 512, 32)):
        for packed in (False, True):
            name = f"ops attention with rotations {size} {'records' if packed else 'rows'}"
            report.attempt(name, partial(_turned, ops, packed, *size))

    def index() -> dict[str, int]:
        q, w, keys = _values(ROWS, 32, 128), _values(ROWS, 32), _values(20000, 128)
        base, counts = (
            torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
            torch.arange(ROWS, device=DEVICE) * 9,
        )
        _, blocks = ops.index_select(q, w, keys, base, counts, 20000, 512, 1024, 8)
        return {
            "select": _unequal(
                lambda r: ops.index_select(q[r], w[r], keys, base[r], counts[r], 20000, 512, 1024, 8),
                PARTS[:6],
            ),
            "within": _unequal(
                lambda r: (ops.index_select_within(q[r], w[r], keys, base[r], counts[r], blocks[r], 8, 512),),
                PARTS[:6],
            ),
        }

    report.attempt("ops index, unequal", index)

    def experts() -> dict[str, float]:
        generator = torch.Generator(DEVICE).manual_seed(1)

        def weight(*shape: int) -> torch.Tensor:
            return reference.decode_mxfp4(*reference.random_mxfp4(generator, *shape))

        parts = [(weight(384, 640), weight(384, 640), weight(640, 384)) for _ in range(24)]
        routed, shared = ops.pack_experts(24, lambda e: parts[e]), ops.pack_experts(1, lambda _: parts[0])
        x, shares = _values(ROWS, 640), torch.rand(ROWS, 6, device=DEVICE)
        ids = torch.rand(ROWS, 24, device=DEVICE).topk(6).indices.sort().values
        gate, up, down = (torch.stack([p[i] for p in parts]) for i in range(3))
        outer = reference.expert_outputs(x[:8], ids[:8], shares[:8], gate, up, down, 10.0)[1]
        one = torch.ones(8, 1, device=DEVICE)
        common = reference.expert_outputs(x[:8], torch.zeros_like(ids[:8, :1]), one, gate, up, down, 10.0)[1]
        wanted = outer.view(8, 6, -1).sum(1) + common
        return {
            "error": reference.relative(ops.moe(x[:8], ids[:8], shares[:8], routed, shared, 10.0), wanted),
            "unequal": _unequal(lambda r: (ops.moe(x[r], ids[r], shares[r], routed, shared, 10.0),)),
        }

    report.attempt("ops moe", experts)
