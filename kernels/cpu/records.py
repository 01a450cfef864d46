"""Packed cache records: quantise rows into paged bytes, decode chosen records (model.md section 8).

Elements are rounded and never summed, so these bytes are the ones of ``engine.formats`` and of every other
kernel set, and ``load(store(x))`` is the round trip of ``fake_quant``.

Legend: T rows to store, n records to load, W channels of a row, B blocks of S records, d data and s scale
bytes of a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu import record_kernels as kernels
from deepinfer.kernels.cpu.addresses import address_of
from deepinfer.kernels.cpu.bound_layer import numbers_of
from deepinfer.kernels.cpu.group_decode import E4M3_VALUES, E8M0_VALUES
from deepinfer.kernels.cpu.record_kernels import Place
from deepinfer.kernels.cpu.workers import Workers

_GRAIN_VALUES = 1 << 14
"""A part of fewer values than this costs less than waking a thread for it."""
_NO_SCALES = np.empty(0, np.float32)


@dataclass(frozen=True)
class _Format:
    """A quantised record: its number in the kernels, channels and data bytes of a group, values of scales."""

    number: int
    group: int
    group_bytes: int
    scale_values: npt.NDArray[np.float32]


_FORMATS: dict[str, _Format | None] = {
    "mxfp8": _Format(kernels.MXFP8, 32, 32, E8M0_VALUES),
    "mxfp4": _Format(kernels.MXFP4, 32, 16, E8M0_VALUES),
    "fp4": _Format(kernels.FP4_E4M3, 16, 8, E4M3_VALUES),
    "exact": None,  # float32 as it is
}


@dataclass(frozen=True)
class BoundRecords:
    """Record buffers that were checked once and are seen as kernels see them.

    Attributes:
        form: format, None for float32 as it is.
        width: values of a record.
        codes, factors: their bytes from first to last, whatever lies between.
        layout: see ``record_kernels``.
    """

    form: _Format | None
    width: int
    codes: npt.NDArray[np.uint8]
    factors: npt.NDArray[np.uint8]
    layout: npt.NDArray[np.int64]

    @cached_property
    def place(self) -> Place:
        """What kernels are told that take records of any format."""
        form = self.form
        if form is None:
            return self.codes, self.factors, self.layout, _NO_SCALES, kernels.EXACT, 1, self.width
        numbers = form.number, form.group, self.width
        return self.codes, self.factors, self.layout, form.scale_values, *numbers

    @cached_property
    def line(self) -> npt.NDArray[np.int64]:
        """The same as numbers, see ``bound_layer``."""
        return np.array(list(numbers_of(self.place)), np.int64)

    @cached_property
    def address(self) -> int:
        """Where the line lies, as long as these records are bound."""
        return address_of(self.line)


def bind_records(kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> BoundRecords:
    """See ``Ops.bind_records``.

    Raises:
        ValueError: a shape does not fit the format.
    """
    form = _check(kind, width, data, scales)
    layout = np.array([*data.shape[:2], *data.stride()[:2], *scales.stride()[:2]], np.int64)
    return BoundRecords(form, width, _flat(data), _flat(scales), layout)


def store_records(records: BoundRecords, values: torch.Tensor, rows: torch.Tensor, workers: Workers) -> None:
    """Quantise ``values`` float32 [T, W] into their records; see ``Ops.store_records``.

    Raises:
        ValueError: a shape does not fit the format, or a row is neither -1 nor a record.
    """
    index, (num_rows, width) = _index(rows), values.shape
    if values.dtype != torch.float32 or index.shape[0] != num_rows or width != records.width:
        raise ValueError(f"store_records: {len(index)} rows for {values.dtype} values {list(values.shape)}")
    source, form, layout = values.contiguous().numpy(), records.form, records.layout
    outside: list[int] = []
    if form is None:
        raw = source.view(np.uint8)

        def part(low: int, high: int) -> None:
            outside.append(kernels.copy_kernel(raw, records.codes, layout, index, True, low, high))
    else:
        number, groups = form.number, source.reshape(num_rows, width // form.group, form.group)

        def part(low: int, high: int) -> None:
            outside.append(
                kernels.store_kernel(
                    source, groups, records.codes, records.factors, layout, index, number, low, high
                )
            )

    workers.run(num_rows, max(1, _GRAIN_VALUES // width), part)
    refuse_outside("store_records", sum(outside), layout)


def load_records(
    records: BoundRecords, rows: torch.Tensor, out: torch.Tensor | None, workers: Workers
) -> torch.Tensor:
    """Decode records to float32 [n, width]; see ``Ops.load_records``.

    Raises:
        ValueError: ``out`` has another shape, or a row is neither -1 nor a record.
    """
    index, width = _index(rows), records.width
    num_rows = len(index)
    if out is None:
        out = torch.empty(num_rows, width)
    elif out.shape != (num_rows, width) or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"load_records: out is {list(out.shape)}, needs contiguous [{num_rows}, {width}]")
    load_rows([records], index, [out.numpy()], workers)
    return out


def load_rows(
    pools: Sequence[BoundRecords],
    index: npt.NDArray[np.int64],
    targets: Sequence[npt.NDArray[np.float32]],
    workers: Workers,
) -> None:
    """``load_records`` on arrays: records ``index`` [n] of every pool into its target [n, width]."""
    outside: list[tuple[int, npt.NDArray[np.int64]]] = []

    def part(low: int, high: int) -> None:
        for records, target in zip(pools, targets, strict=True):
            outside.append((_load(records, index, target, low, high), records.layout))

    width = sum(target.shape[1] for target in targets)
    workers.run(len(index), max(1, _GRAIN_VALUES // width), part)
    for number, layout in outside:
        refuse_outside("load_records", number, layout)


def _load(
    records: BoundRecords,
    index: npt.NDArray[np.int64],
    target: npt.NDArray[np.float32],
    low: int,
    high: int,
) -> int:
    """Load rows ``low .. high``; how many are neither -1 nor a record."""
    codes, layout, form = records.codes, records.layout, records.form
    if form is None:
        return kernels.copy_kernel(target.view(np.uint8), codes, layout, index, False, low, high)
    groups = target.reshape(len(target), target.shape[1] // form.group, form.group)
    return kernels.load_kernel(
        codes, records.factors, layout, form.scale_values, index, groups, form.number, low, high
    )


def _index(rows: torch.Tensor) -> npt.NDArray[np.int64]:
    if rows.ndim != 1 or rows.dtype != torch.int64:
        raise ValueError(f"records: rows must be int64 [n], got {rows.dtype} {list(rows.shape)}")
    index: npt.NDArray[np.int64] = rows.contiguous().numpy()
    return index


def _flat(part: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes from the first to the last of ``part`` [B, S, n], whatever lies between."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    return part.as_strided((span if part.numel() else 0,), (1,)).numpy()


def _check(kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> _Format | None:
    """The format of ``kind``, if the buffers have its shape; the kernels use addresses and check nothing."""
    if kind not in _FORMATS:
        raise ValueError(f"records: unknown kind {kind!r}; choose from {', '.join(_FORMATS)}")
    form = _FORMATS[kind]
    group, group_bytes = (form.group, form.group_bytes) if form else (1, 4)
    num_bytes, num_scales = width // group * group_bytes, width // group if form else 0
    fits = (
        width > 0
        and width % group == 0
        and data.ndim == 3
        and data.shape[2] == num_bytes
        and scales.shape == (*data.shape[:2], num_scales)
        and data.dtype == scales.dtype == torch.uint8
        and data.stride(2) == 1
        and (num_scales == 0 or scales.stride(2) == 1)
    )
    if not fits:
        raise ValueError(
            f"records: {kind} of width {width} (a multiple of {group}) needs uint8 data"
            f" [B, S, {num_bytes}] and scales [B, S, {num_scales}], the last axes contiguous;"
            f" got {list(data.shape)} and {list(scales.shape)}"
        )
    return form


def refuse_outside(name: str, num_outside: int, layout: npt.NDArray[np.int64]) -> None:
    """Complain in the name of an op of so many rows that name no record of ``layout``."""
    if num_outside:
        num_records = layout[0] * layout[1]
        raise ValueError(f"{name}: {num_outside} rows are neither -1 nor one of the {num_records} records")
