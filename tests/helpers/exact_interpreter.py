"""Triton's interpreter with the device's arithmetic: real fused multiply-adds, and ``tl.dot`` as their chain.

As shipped the interpreter rounds a product before it adds and multiplies matrices in whatever order numpy
likes, so its bits prove nothing. With both replaced, a kernel here must give the bytes of the CPU kernels.
"""

from __future__ import annotations

import os
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.elementary import fma, fma64

Array = npt.NDArray[Any]


@numba.njit
def _fma_all(a: Array, b: Array, c: Array, out: Array) -> None:
    for i in range(out.shape[0]):
        out[i] = fma(a[i], b[i], c[i])


@numba.njit
def _fma64_all(a: Array, b: Array, c: Array, out: Array) -> None:
    for i in range(out.shape[0]):
        out[i] = fma64(a[i], b[i], c[i])


@numba.njit
def _dot_chain(a: Array, b: Array, out: Array) -> None:
    for m in range(out.shape[0]):
        for k in range(a.shape[1]):
            for n in range(out.shape[1]):
                out[m, n] = fma(a[m, k], b[k, n], out[m, n])


def fused(a: Array, b: Array, c: Array) -> Array:
    """Element-wise ``a * b + c`` with one rounding."""
    a, b, c = (np.ascontiguousarray(part) for part in np.broadcast_arrays(a, b, c))
    out = np.empty_like(c)
    each = _fma64_all if out.dtype == np.float64 else _fma_all
    each(a.reshape(-1), b.reshape(-1), c.reshape(-1), out.reshape(-1))
    return out


def dot_chain(a: Array, b: Array, c: Array) -> Array:
    """``c`` plus the chain over ascending k of ``a[m, k] * b[k, n]``."""
    out = np.array(c, np.float32)
    _dot_chain(np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32), out)
    return out


def _as_float32(values: Array) -> Array:
    """The interpreter keeps bfloat16 as the upper halves of float32."""
    return (
        (values.astype(np.uint32) << np.uint32(16)).view(np.float32) if values.dtype == np.uint16 else values
    )


def _as_bfloat16(values: Array) -> Array:
    """float32 to upper halves, to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


_E2M1 = np.array((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), np.float32)


def _of_e2m1(packed: Array) -> Array:
    """Values of codes packed along the last axis, the first in the low nibble."""
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)
    return np.where(codes & 8, -_E2M1[codes & 7], _E2M1[codes & 7])


def _of_e4m3(codes: Array) -> Array:
    """Values of codes; the code of NaN is one."""
    high, low = (codes.astype(np.int32) >> 3) & 15, codes.astype(np.int32) & 7
    value = np.where(high == 0, np.ldexp(low, -9), np.ldexp(8 + low, high - 10)).astype(np.float32)
    value = np.where((codes & 127) == 127, np.float32(np.nan), value)
    return np.where(codes & 128, -value, value)


def _of_e8m0(codes: Array) -> Array:
    """Powers of two; 255 is NaN."""
    power = np.ldexp(np.float32(1), codes.astype(np.int32) - 127)
    return np.where(codes == 255, np.float32(np.nan), power)


def scaled_dot_chain(a: Array, a_scales: Array, b: Array, b_scales: Array, c: Array) -> Array:
    """``c`` [M, N] plus the chain of products of e2m1 [M, K / 2] and e4m3 [K, N], scales [M or N, K / 32].

    Values and scales multiply exactly. A chip's order inside a step is its own; this is one of them.
    """
    left = _of_e2m1(a) * np.repeat(_of_e8m0(a_scales), 32, axis=1)
    right = _of_e4m3(b) * np.repeat(_of_e8m0(b_scales), 32, axis=1).T
    return dot_chain(left, right, c)


class _Results:
    """What an operation with several results gives back."""

    def __init__(self, only: Any) -> None:
        self._only = only

    def get_result(self, number: int) -> Any:
        """The result of this number."""
        return self._only


def make_exact() -> None:
    """Turn the interpreter on for this process and make it exact; call it before anything imports triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    handle: Any = interpreter.TensorHandle
    patch_tensor: Any = interpreter._patch_lang_tensor

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        return handle(fused(x.data, y.data, z.data), z.dtype.scalar)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        left, right = (_as_float32(part.data) for part in (a, b))
        return handle(dot_chain(left, right, d.data), d.dtype.scalar)

    def create_dot_scaled(
        self: Any, a: Any, a_scales: Any, a_kind: Any, b: Any, b_scales: Any, b_kind: Any, *rest: Any
    ) -> Any:
        kinds = (str(a_kind), str(b_kind))
        assert ("E2M1" in kinds[0], "E4M3" in kinds[1]) == (True, True), kinds
        parts = [part.data.view(np.uint8) for part in (a, a_scales, b, b_scales)]
        return handle(scaled_dot_chain(*parts, rest[-1].data), rest[-1].dtype.scalar)

    multiply, cast = builder.create_fmul, builder.cast_impl

    def cast_rounded(self: Any, source: Any, target: Any) -> Any:
        """As shipped, a conversion to bfloat16 cuts bits off."""
        kinds = str(source.dtype.scalar), str(target.scalar)
        if kinds == ("fp32", "bf16"):
            return handle(_as_bfloat16(source.data), target.scalar)
        if kinds == ("bf16", "fp32"):
            return handle(_as_float32(source.data), target.scalar)
        return cast(self, source, target)

    def create_fmul(self: Any, x: Any, y: Any) -> Any:
        if x.data.dtype != np.uint16:
            return multiply(self, x, y)
        product = _as_float32(x.data) * _as_float32(y.data)  # exact: 16 bits of significand
        return handle(_as_bfloat16(product), x.dtype.scalar)

    def create_inline_asm(self: Any, text: str, constraints: str, values: Any, *rest: Any) -> Any:
        if text == "mov.b32 $0, $1;":
            return _Results(values[0])
        assert text.startswith("fma.rn.bf16x2"), text
        a, b = (value.data.view(np.uint32) for value in values[:2])
        low, high = (
            _as_bfloat16(
                _as_float32((a >> shift).astype(np.uint16)) * _as_float32((b >> shift).astype(np.uint16))
            )
            for shift in (np.uint32(0), np.uint32(16))
        )
        both = low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)
        return _Results(handle(both.view(np.int32), rest[0][0].scalar))

    def patch_with_scalars(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        # numpy 2.4 no longer turns an array of one element into an int by itself
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    builder.create_fma, builder.create_dot, builder.create_fmul = create_fma, create_dot, create_fmul
    builder.create_dot_scaled = create_dot_scaled
    builder.cast_impl, builder.create_inline_asm = cast_rounded, create_inline_asm
    interpreter._patch_lang_tensor = patch_with_scalars


def make_unfused() -> None:
    """A seeded fault: from now on a product is rounded before the addition."""
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    handle: Any = interpreter.TensorHandle

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        return handle(x.data * y.data + z.data, z.dtype.scalar)

    builder.create_fma = create_fma
