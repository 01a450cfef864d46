"""One random case after the other for every op, so that two kernel sets can be compared byte for byte.

A case draws its own inputs from numpy's generator, which gives the same numbers everywhere (their digest is
kept and checked). Tests run the small ones in Triton's interpreter; ``benchmarks/gpu_strict.py`` runs all
of them on a device against bytes that the CPU kernels made beforehand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.interface import Ops

Outputs = tuple[torch.Tensor, ...]


class Draws:
    """Random inputs on one device, with a digest over everything drawn."""

    def __init__(self, name: str, place: str = "cpu") -> None:
        """Seed from the case's name, so that cases do not move each other."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        self._random, self._place, self._digest = np.random.default_rng(seed), place, hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 over all inputs so far."""
        return self._digest.hexdigest()

    def put(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """``values`` on the device."""
        self._digest.update(np.ascontiguousarray(values).tobytes())
        return torch.from_numpy(values).to(self._place)

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal float32."""
        return self.put(self._random.standard_normal(shape, np.float32) * np.float32(scale))

    def wide(self, *shape: int) -> torch.Tensor:
        """Float32 of many magnitudes and both signs, exact zeros included."""
        values = self._random.standard_normal(shape, np.float32)
        scales = np.ldexp(np.float32(1), self._random.integers(-30, 30, shape).astype(np.int32))
        values = (values * scales).astype(np.float32)
        values.reshape(-1)[::97] = 0.0
        values.reshape(-1)[1::89] = -0.0
        return self.put(values)

    def coarse(self, *shape: int) -> torch.Tensor:
        """Float32 on a coarse grid: many exact ties and zeros."""
        return self.put(np.rint(self._random.standard_normal(shape, np.float32) * 2) / np.float32(2))

    def half_exact(self, *shape: int) -> torch.Tensor:
        """Float32 that bfloat16 holds exactly: normals with sixteen bits cut off."""
        bits = self._random.standard_normal(shape, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return self.put(bits.view(np.float32))

    def whole(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Int64 in ``low .. high - 1``."""
        return self.put(self._random.integers(low, high, shape))

    def subsets(self, rows: int, size: int, top: int) -> torch.Tensor:
        """Int64 [rows, top]: ascending choices out of ``size``."""
        picks = [np.sort(self._random.permutation(size)[:top]) for _ in range(rows)]
        return self.put(np.stack(picks).astype(np.int64))


@dataclass(frozen=True)
class Case:
    """A named computation; ``small`` ones run in the interpreter too."""

    name: str
    run: Callable[[Ops, Draws], Outputs]
    small: bool


def _linear(ops: Ops, d: Draws, rows: int, inputs: int, outputs: int, groups: int, half: bool) -> Outputs:
    shape = (groups, outputs, inputs) if groups > 1 else (outputs, inputs)
    weight = ops.pack_linear(d.half_exact(*shape) if half else d.normal(*shape))
    return (ops.linear_fp32(d.normal(rows, groups * inputs), weight),)


def _written_out(ops: Ops, d: Draws, rows: int, inputs: int, outputs: int) -> Outputs:
    weight, x = ops.pack_linear(d.normal(outputs, inputs)), d.normal(rows, inputs)
    if ops.name == "triton":
        from deepinfer.kernels.gpu.linear import linear

        return (linear(x, weight, False, explicit=True),)
    return (ops.linear_fp32(x, weight),)


def _pointwise(ops: Ops, d: Draws, count: int) -> Outputs:
    x = d.wide(count)
    return (
        ops.sigmoid(x),
        ops.scale(x, 0.3),
        ops.add_fp32(x, d.wide(count)),
        ops.sigmoid(d.normal(count, scale=20)),
    )


def _norm(ops: Ops, d: Draws, rows: int, width: int) -> Outputs:
    return (ops.rms_norm(d.normal(rows, width), d.normal(width), 1e-20),)


def _rotate(ops: Ops, d: Draws, rows: int, heads: int, width: int, pairs: int) -> Outputs:
    cos, sin, positions = d.normal(50, pairs), d.normal(50, pairs), d.whole(0, 50, rows)
    x = d.normal(rows, heads, width)
    forth = ops.rotate_(x.clone(), cos, sin, positions)
    return forth, ops.rotate_(x.clone(), cos, sin, positions, inverse=True)


def _round_trips(ops: Ops, d: Draws, rows: int, width: int) -> Outputs:
    x = d.wide(rows, width)
    return ops.mxfp8_(x.clone()), ops.mxfp4_(x.clone()), ops.fp4_(x.clone())


def _records(ops: Ops, d: Draws, kind: str, width: int, data: int, scales: int, broken: bool) -> Outputs:
    step, values = data + scales, d.wide(9, width)
    if broken:
        values[2, 3], values[4, width - 1], values[5, 0] = float("inf"), float("nan"), -float("inf")
    buffer = torch.zeros(4, 5 * step + 7, dtype=torch.uint8).to(values.device)
    shape = (4, 5, data), (5 * step + 7, step, 1)
    own = buffer.as_strided(*shape), buffer.as_strided((4, 5, scales), shape[1], data)
    where = ops.bind_records(kind, width, *own)
    rows = d.put(np.array([3, 7, -1, 0, 19, 12, 4, 5, 6]))
    ops.store_records(where, values, rows)
    return buffer, ops.load_records(where, d.put(np.array([19, 0, -1, 3, 3, 12, 1, 6])))


def _copies(ops: Ops, d: Draws, count: int, width: int, step: int) -> Outputs:
    pool, target = (d.whole(0, 256, 3 * count, step).to(torch.uint8) for _ in range(2))
    to, rows = d.put(np.arange(3 * count)[::-3].copy()), d.whole(0, count, count) * 3
    to[1], rows[2] = -1, -1
    ops.copy_rows_(target[:, :width], to, pool[:, :width], rows)
    return target, ops.copy_rows_(pool[:, 1:], to, pool[:, 1:], rows)  # bytes that are no words


def _hyper(ops: Ops, d: Draws, rows: int, width: int) -> Outputs:
    streams = d.normal(rows, 4, width)
    fn, base, scale = ops.pack_linear(d.normal(24, 4 * width, scale=0.1)), d.normal(24), d.normal(3)
    pre, post, comb = ops.hc_mix(streams, fn, base, scale, 20, 1e-6, 1e-20)
    out = ops.hc_collapse(streams, pre)
    return pre, post, comb, out, ops.hc_expand(streams, out, post, comb), ops.mean_streams(streams)


def _pool(ops: Ops, d: Draws, groups: int, width: int) -> Outputs:
    return (ops.pool_pairs(d.normal(groups, 2, width), d.normal(groups, 2, width, scale=5)),)


def _engram(ops: Ops, d: Draws, rows: int, width: int) -> Outputs:
    streams, kv, gains = d.normal(rows, 4, width), d.normal(rows, 5 * width), d.normal(4, width)
    return (ops.engram_gate(streams, kv, gains, 1e-20),)


def _route(ops: Ops, d: Draws, rows: int, experts: int, top: int) -> Outputs:
    logits, bias = d.normal(rows, experts, scale=8), d.normal(experts, scale=0.1)
    tied = d.coarse(rows, experts)
    return *ops.route(logits, bias, top, True, 1.5), *ops.route(tied, torch.zeros_like(bias), top, False, 1.5)


def _moe(ops: Ops, d: Draws, rows: int, width: int, inner: int, experts: int, top: int) -> Outputs:
    make: Any = d.half_exact
    parts = [(make(inner, width), make(inner, width), make(width, inner)) for _ in range(experts)]
    common = (d.normal(inner, width), d.normal(inner, width), d.normal(width, inner))
    routed, shared = ops.pack_experts(experts, lambda e: parts[e]), ops.pack_experts(1, lambda _: common)
    x, ids = d.normal(rows, width), d.subsets(rows, experts, top)
    weights = d.normal(rows, top).abs()
    return tuple(ops.moe(x, ids, weights, routed, shared, limit) for limit in (0.0, 10.0))


def _attention(ops: Ops, d: Draws, rows: int, heads: int, width: int, near: int, far: int) -> Outputs:
    q, window, main = d.normal(rows, heads, width), d.normal(3 * near, width), d.normal(5 * far + 1, width)
    ends = d.whole(0, 2 * near, rows)
    slots = ends[:, None] + torch.arange(near, device=q.device)[None] - near + 1
    slots = torch.where(slots < 0, -1, slots)
    chosen = d.whole(-1, 5 * far + 1, rows, far)
    slots[0], chosen[0] = -1, -1  # nothing visible
    sink = d.normal(heads)
    both = ops.sparse_attention(q, window, slots, main, chosen, sink)
    return both, ops.sparse_attention(q, window, slots, window, chosen[:, :0], sink)


def _index(
    ops: Ops, d: Draws, rows: int, heads: int, width: int, entries: int, top: int, blocks: int, fine: bool
) -> Outputs:
    pick = d.normal if fine else d.coarse
    q, w, keys = pick(rows, heads, width), d.normal(rows, heads), pick(3 * entries, width)
    counts, base = d.whole(0, entries + 1, rows), d.whole(0, 2, rows) * entries
    counts[0], counts[-1] = entries, 0
    plain, _ = ops.index_select(q, w, keys, base, counts, entries, top, 0, 8)
    chosen, candidates = ops.index_select(q, w, keys, base, counts, entries, top, blocks, 8)
    within = ops.index_select_within(-q, w, keys, base, counts, candidates, 8, top)
    return plain, chosen, candidates, within


def _logprobs(ops: Ops, d: Draws, rows: int, vocabulary: int) -> Outputs:
    logits, targets = d.normal(rows, vocabulary, scale=3), d.whole(0, vocabulary, rows)
    logits[::2] = d.coarse(rows, vocabulary)[::2]
    return *ops.token_logprobs(logits, targets), ops.log_softmax(logits)


def _sample(ops: Ops, d: Draws, vocabulary: int, rows: int) -> Outputs:
    logits = d.normal(12, vocabulary, scale=2)
    logits[::2] = d.coarse(12, vocabulary)[::2]
    heat = d.put(np.array([1, 0.7, 0, 1.3, 1, 1, 1, 0, 2, 0.1, 1, 1], np.float32))
    mass = d.put(np.array([0.5, 0.9, 1, 0.9, 0.2, 1, 0.5, 0.99, 1, 0.999, 0.7, 0], np.float32))
    count = d.put(np.array([0, 20, 0, 5, 0, 0, 3, vocabulary, 1, 0, 7, 0]))
    floor = d.put(np.array([0, 0, 0, 0.05, 0.01, 0, 0, 0.3, 0, 0, 0.02, 0], np.float32))
    words = d.whole(0, 2**32, 12, 16)
    words[4] = 2**32 - 1  # every word is rejected: REJECTED_ROW of interpreted_fast_cases
    return ops.sample(*(part[:rows] for part in (logits, heat, mass, count, floor, words)))


def _budget(ops: Ops, d: Draws, rows: int, size: int) -> Outputs:
    """Products that tie, that vanish, and numbers that are no probabilities; budgets from nothing to all."""
    confidences = d.whole(0, 5, rows, size).float() / 4
    confidences[::3] = d.normal(*confidences[::3].shape)
    confidences[0, -1] = float("nan")
    caps = d.whole(0, size + 1, rows)
    return [ops.verify_budget(confidences, caps, total) for total in (0, 1, rows, 2 * rows, rows * size)]


def _words(ops: Ops, d: Draws, rows: int, count: int) -> Outputs:
    """Seeds of 64 bits, positions and samples whose streams need more than 32."""
    seeds, positions = d.whole(-(2**63), 2**63, rows), d.whole(0, 2**40, rows)
    return (ops.random_words(seeds, positions, d.whole(0, 2**32, rows), count),)


def _sized(kind: str, run: Any, sizes: list[tuple[Any, ...]], small: list[tuple[Any, ...]]) -> list[Case]:
    def bound(size: tuple[Any, ...]) -> Callable[[Ops, Draws], Outputs]:
        return lambda ops, d: tuple(run(ops, d, *size))

    def named(size: tuple[Any, ...], is_small: bool) -> Case:
        return Case(f"{kind} {' x '.join(str(n) for n in size)}", bound(size), is_small)

    return [named(size, True) for size in small] + [named(size, False) for size in sizes]


def all_cases() -> list[Case]:
    """Every case: odd small shapes, then those of the bundled checkpoint and of the released model."""
    mini_linear = [(1, 256, 128), (33, 128, 512), (17, 256, 4096), (100, 1024, 24)]
    return [
        *_sized(
            "linear",
            _linear,
            [(*s, 1, h) for s in mini_linear for h in (True, False)],
            [(5, 70, 33, 1, False)],
        ),
        *_sized("linear released", _linear, [(1, 5120, 1280, 1, True), (40, 1280, 512, 1, True)], []),
        *_sized("grouped", _linear, [(9, 256, 64, 2, True)], [(18, 24, 20, 2, False)]),
        *_sized("written out", _written_out, [(17, 256, 512), (3, 5120, 64)], [(5, 70, 33)]),
        *_sized("pointwise", _pointwise, [(100_003,)], [(1500,)]),
        *_sized("norm", _norm, [(1, 256), (65, 256), (9, 5120)], [(5, 70)]),
        *_sized("rotate", _rotate, [(33, 4, 128, 16), (5, 64, 512, 32)], [(5, 3, 24, 8)]),
        *_sized("round trips", _round_trips, [(300, 128), (9, 512)], [(6, 64)]),
        *_sized(
            "records",
            _records,
            [("mxfp8", 512, 512, 16, False), ("mxfp4", 128, 64, 4, False), ("fp4", 512, 256, 32, False)],
            [
                ("mxfp8", 64, 64, 2, True),
                ("mxfp4", 64, 32, 2, True),
                ("fp4", 48, 24, 3, True),
                ("exact", 10, 40, 0, True),
            ],
        ),
        *_sized("copies", _copies, [(100, 528, 544), (9, 37_888, 37_888)], [(7, 24, 24)]),
        *_sized("hyper", _hyper, [(1, 256), (40, 256), (5, 5120)], [(5, 24)]),
        *_sized("pool", _pool, [(33, 128), (5, 512)], [(7, 40)]),
        *_sized("engram", _engram, [(33, 256), (5, 5120)], [(5, 24)]),
        *_sized("route", _route, [(64, 16, 2), (33, 384, 6)], [(6, 24, 3)]),
        *_sized(
            "moe",
            _moe,
            [(1, 256, 128, 16, 2), (70, 256, 128, 16, 2), (40, 640, 288, 24, 6)],
            [(9, 24, 20, 6, 2)],
        ),
        *_sized("attention", _attention, [(40, 4, 128, 64, 64), (3, 64, 512, 128, 512)], [(3, 5, 32, 6, 19)]),
        *_sized(
            "index",
            _index,
            [
                (40, 4, 64, 900, 64, 16, True),
                (40, 4, 64, 900, 64, 16, False),
                (4, 32, 128, 20_000, 512, 2048, True),
            ],
            [(4, 3, 32, 70, 16, 4, False)],
        ),
        *_sized("logprobs", _logprobs, [(40, 4096), (3, 129_280)], [(1, 200)]),
        *_sized("budget", _budget, [(64, 5), (300, 5)], [(6, 3)]),
        *_sized("words", _words, [(64, 16), (384, 16)], [(5, 16), (3, 6)]),
        *_sized("sample", _sample, [(4096, 12), (129_280, 12)], [(150, 5)]),
    ]
