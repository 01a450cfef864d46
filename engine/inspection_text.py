"""The summary of a model as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from deepinfer.engine.inspection import ModelSummary, format_bytes
from deepinfer.engine.layer_roles import LayerRole


def render_summary(summary: ModelSummary) -> str:
    """Return the report of ``deepinfer inspect``: components, layer roles, memory; no trailing newline."""
    source = "weights checked against config.json" if summary.has_weights else "from the configuration alone"
    kind = "quantised" if summary.is_quantized else "unquantised"
    parts = [
        [f"{summary.path}: {kind}, {source}", ""],
        _component_table(summary),
        [""],
        _layer_table(summary.layers),
        [""],
        _memory(summary),
    ]
    return "\n".join(line for part in parts for line in part)


def _component_table(summary: ModelSummary) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("component", "tensors", "parameters", "stored bytes")]
    for part in summary.components:
        rows.append(_component_row(part.name, part.num_tensors, part.num_parameters, part.stored_bytes))
    rows.append(_component_row("total", summary.num_tensors, summary.num_parameters, summary.stored_bytes))
    for part in summary.subtotals:
        name = f"of these: {part.name}"
        rows.append(_component_row(name, part.num_tensors, part.num_parameters, part.stored_bytes))
    return _aligned(rows, numeric=True)


def _component_row(name: str, *numbers: int) -> tuple[str, ...]:
    return (name, *(f"{number:,}" for number in numbers))


def _layer_table(layers: tuple[LayerRole, ...]) -> Iterator[str]:
    """One row for each run of layers that do the same."""
    rows: list[tuple[str, ...]] = [("layers", "half", "role", "ratio", "KV from", "selection from", "extra")]
    for _, run in groupby(layers, key=_duties):
        members = list(run)
        first, last = members[0], members[-1]
        name = first.name if first is last else f"{first.name}-{last.name.rpartition('.')[2]}"
        rows.append((name, *_duties(first)))
    return _aligned(rows, numeric=False)


def _duties(layer: LayerRole) -> tuple[str, str, str, str, str, str]:
    kv_from = "-" if layer.kv_from is None else str(layer.kv_from)
    selection_from = "-" if layer.selection_from is None else str(layer.selection_from)
    return layer.half, layer.role, str(layer.ratio), kv_from, selection_from, ", ".join(layer.extras)


def _memory(summary: ModelSummary) -> Iterator[str]:
    needed = format_bytes(summary.resident_bytes)
    yield f"memory when loaded   {needed} (float32 weights, Engram tables mapped)"
    if summary.available_bytes is None:
        yield "memory available     unknown on this platform"
        return
    yield f"memory available     {format_bytes(summary.available_bytes)}"
    yield f"fits this machine    {'yes' if summary.fits else 'no'}"


def _aligned(rows: list[tuple[str, ...]], *, numeric: bool) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if numeric and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
