"""Operands of a layer as one line of numbers: addresses, sizes and the bit patterns of float32.

Compiled code takes an argument apart in a third of a microsecond, and a layer has a hundred. It is bound
once: as nested tuples, the way kernels see it, and as their numbers one after the other, from which a kernel
makes the same tuples again. All layers thus have one type, and a kernel can walk over a table of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from deepinfer.kernels.cpu.addresses import floats
from deepinfer.kernels.cpu.compiled import inlined
from deepinfer.kernels.cpu.elementary import float_of
from deepinfer.kernels.cpu.expert_products import Place as ExpertPlace
from deepinfer.kernels.cpu.linear import PackedLinear, Place
from deepinfer.kernels.cpu.packed_experts import PackedExperts
from deepinfer.kernels.draft_operands import WindowLayer
from deepinfer.kernels.operands import MoeWeights, SiteWeights

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Dense = tuple[Place, int]
"""``PackedLinear.place`` and the outputs of all its groups together."""
Site = tuple[Dense, Float32, Float32, Float32, int, np.float32, np.float32]
"""fn, base, scale, gain, iterations, hc_eps, rms_eps of a ``SiteWeights``."""
Attention = tuple[Dense, Float32, Dense, Dense, Float32, Dense, Dense, Float32, np.float32]
"""Query down, its norm, query up; latent, its norm; both output matrices; sink; eps of the norms."""
Latent = tuple[Dense, Float32, np.float32]
"""Of these the latent, its norm and eps."""
Stacks = tuple[ExpertPlace, ExpertPlace, ExpertPlace]
Moe = tuple[Dense, Float32, int, bool, np.float32, np.float32, Stacks, Stacks]
"""Gate, bias, k, normalise, factor, limit, matrices of the experts and of the shared one."""
Layer = tuple[Site, Attention, int, Site, Moe]
_DENSE, _ARRAY, _SITE, _ATTENTION, _STACKS = 6, 2, 15, 37, 12
_LATENT = 2 * _DENSE + _ARRAY
"""Where the latent is in the attention."""
LAYER_NUMBERS = 2 * _SITE + _ATTENTION + 1 + _DENSE + _ARRAY + 4 + 2 * _STACKS


@inlined
def float_at(line: Int64, i: int) -> np.float32:
    """The float32 at place ``i``."""
    return np.float32(float_of(np.int32(line[i])))


@inlined
def floats_at(line: Int64, i: int) -> Float32:
    """The array float32 [n] whose address and n are at place ``i``."""
    return carray(floats(line[i]), (line[i + 1],))


@inlined
def place_at(line: Int64, i: int) -> Place:
    """A ``PackedLinear.place``."""
    return line[i], line[i + 1] != 0, line[i + 2], line[i + 3], line[i + 4]


@inlined
def _dense_at(line: Int64, i: int) -> Dense:
    return place_at(line, i), line[i + 5]


@inlined
def _site_at(line: Int64, i: int) -> Site:
    return (
        _dense_at(line, i), floats_at(line, i + 6), floats_at(line, i + 8), floats_at(line, i + 10),
        line[i + 12], float_at(line, i + 13), float_at(line, i + 14),
    )  # fmt: skip


@inlined
def _attention_at(line: Int64, i: int) -> Attention:
    return (
        _dense_at(line, i), floats_at(line, i + 6), _dense_at(line, i + 8),
        _dense_at(line, i + 14), floats_at(line, i + 20),
        _dense_at(line, i + 22), _dense_at(line, i + 28), floats_at(line, i + 34), float_at(line, i + 36),
    )  # fmt: skip


@inlined
def _stacks_at(line: Int64, i: int) -> Stacks:
    gate, up = (
        (line[i], line[i + 1], line[i + 2], line[i + 3]),
        (line[i + 4], line[i + 5], line[i + 6], line[i + 7]),
    )
    return gate, up, (line[i + 8], line[i + 9], line[i + 10], line[i + 11])


@inlined
def _moe_at(line: Int64, i: int) -> Moe:
    return (
        _dense_at(line, i), floats_at(line, i + 6), line[i + 8], line[i + 9] != 0,
        float_at(line, i + 10), float_at(line, i + 11), _stacks_at(line, i + 12), _stacks_at(line, i + 24),
    )  # fmt: skip


@inlined
def layer_at(line: Int64) -> Layer:
    """The layer that ``line`` [LAYER_NUMBERS] stands for."""
    second = _SITE + _ATTENTION + 1
    return (
        _site_at(line, 0), _attention_at(line, _SITE), line[second - 1], _site_at(line, second),
        _moe_at(line, second + _SITE),
    )  # fmt: skip


@inlined
def latent_at(line: Int64) -> Latent:
    """The part of it that shows rows."""
    place = _SITE + _LATENT
    return _dense_at(line, place), floats_at(line, place + _DENSE), float_at(line, _SITE + _ATTENTION - 1)


def numbers_of(operand: object) -> Iterator[int]:
    """The numbers that stand for nested tuples, from first to last."""
    if isinstance(operand, tuple):
        for part in operand:
            yield from numbers_of(part)
    elif isinstance(operand, np.ndarray):
        assert operand.flags.c_contiguous, "kernels are told an address"
        yield from (operand.ctypes.data, *operand.shape)
    elif isinstance(operand, np.float32):
        yield int(operand.view(np.int32))
    else:
        assert isinstance(operand, int | np.integer)
        yield int(operand)


_Table = tuple[tuple["ref[WindowLayer]", ...], Int64]
"""Layers and their numbers."""
_NO_TABLE: _Table = ((), np.empty((0, LAYER_NUMBERS), np.int64))


class BoundLayers:
    """Remembers the line of each layer, for as long as the layer lives."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._bound: WeakKeyDictionary[WindowLayer, Int64] = WeakKeyDictionary()
        self._tables: WeakKeyDictionary[WindowLayer, _Table] = WeakKeyDictionary()

    def __getitem__(self, layer: WindowLayer) -> Int64:
        """int64 [LAYER_NUMBERS]."""
        found = self._bound.get(layer)
        if found is None:
            found = np.array(list(numbers_of(bound_layer(layer))), np.int64)
            assert len(found) == LAYER_NUMBERS
            self._bound[layer] = found
        return found

    def table(self, layers: Sequence[WindowLayer]) -> Int64:
        """Of one layer or more int64 [L, LAYER_NUMBERS]; the last table that begins with a layer is kept."""
        known, table = self._tables.get(layers[0], _NO_TABLE)
        if len(known) != len(layers) or any(
            seen() is not layer for seen, layer in zip(known, layers, strict=True)
        ):
            known, table = tuple(map(ref, layers)), np.stack([self[layer] for layer in layers])
            self._tables[layers[0]] = known, table
        return table


def bound_layer(layer: WindowLayer) -> Layer:
    """``layer`` as kernels see it."""
    first, second = _site_of(layer.attn_site), _site_of(layer.ffn_site)
    return first, _attention_of(layer), layer.num_heads, second, _moe_of(layer.moe)


def _dense_of(weight: PackedLinear) -> Dense:
    return weight.place, weight.panels.shape[0] * weight.num_outputs


def _site_of(site: SiteWeights) -> Site:
    base, scale, gain = site.base.numpy(), site.scale.numpy(), site.gain.numpy()
    return (
        _dense_of(site.fn), base, scale, gain, site.iterations,
        np.float32(site.hc_eps), np.float32(site.rms_eps),
    )  # fmt: skip


def _attention_of(weights: WindowLayer) -> Attention:
    query = weights.query
    if query.eps != weights.eps:
        raise ValueError("window_layer: queries and latents are normed with the same eps")
    return (
        _dense_of(query.down), query.gain.numpy(), _dense_of(query.up),
        _dense_of(weights.latent), weights.latent_gain.numpy(),
        _dense_of(weights.wo_a), _dense_of(weights.wo_b),
        weights.sink.numpy(), np.float32(weights.eps),
    )  # fmt: skip


def _moe_of(moe: MoeWeights) -> Moe:
    experts, shared = (_stacks_of(packed) for packed in (moe.experts, moe.shared))
    factor, limit = np.float32(moe.factor), np.float32(moe.limit)
    return (
        _dense_of(moe.gate), moe.bias.numpy(), moe.num_selected, moe.normalise, factor, limit, experts, shared
    )  # fmt: skip


def _stacks_of(packed: PackedExperts) -> Stacks:
    return packed.gate.place, packed.up.place, packed.down.place
