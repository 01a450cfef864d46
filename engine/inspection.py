"""What a model consists of and whether this machine can hold it, from headers and configuration alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.available_memory import available_memory_bytes
from deepinfer.engine.checkpoint_layout import has_weights, read_layout
from deepinfer.engine.config import load_model_config
from deepinfer.engine.errors import CapacityError
from deepinfer.engine.inventory import Component, TensorSpec, expected_tensors, vision_tensors
from deepinfer.engine.layer_roles import LayerRole, layer_roles
from deepinfer.engine.model_config import ModelConfig

_FLOAT32_BYTES = 4
_DRAFT = frozenset(part for part in Component if part.name.startswith("DRAFT_"))
_APART = _DRAFT | {Component.ENGRAM_TABLE, Component.VISION, Component.SCALES}


@dataclass(frozen=True, kw_only=True)
class ComponentSummary:
    """Totals of one part of the model; scales are a part of their own, with bytes but no parameters."""

    name: str
    num_tensors: int
    num_parameters: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """What ``inspect`` reports.

    Attributes:
        path: the folder or config.json that was inspected.
        has_weights: whether tensors were found and matched; else every number follows from the configuration.
        is_quantized: whether the checkpoint format has scales.
        components: totals per part, only parts the model has; vision only if there are no weights, as its
            tensors are skipped.
        subtotals: sums over parts: the backbone without Engram tables, the draft, all but the tables.
        num_tensors, num_parameters, stored_bytes: sums over the components; bytes are payload.
        layers: what each layer does.
        resident_bytes: memory that loading the model takes.
        available_bytes: memory this process can still use, ``None`` if the platform does not say.
        fits: whether the former is at most the latter; true if unknown.
    """

    path: str
    has_weights: bool
    is_quantized: bool
    components: tuple[ComponentSummary, ...]
    subtotals: tuple[ComponentSummary, ...]
    num_tensors: int
    num_parameters: int
    stored_bytes: int
    layers: tuple[LayerRole, ...]
    resident_bytes: int
    available_bytes: int | None
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain JSON values."""
        return dataclasses.asdict(self)


def inspect_model(path: Path) -> ModelSummary:
    """Summarise a checkpoint folder, or a model that exists as a config.json only; allocates no weights.

    A folder with weights has its headers checked against its config.json, and its bytes counted as stored.

    Raises:
        ConfigError: config.json is unusable.
        CheckpointError: the weights are unreadable or do not match.
    """
    config = load_model_config(path)
    tensors: list[tuple[TensorSpec, int]]
    is_stored = path.is_dir() and has_weights(path)
    if is_stored:
        layout = read_layout(path, config)
        tensors = [(spec, stored.size_bytes) for spec, stored in layout.values()]
    else:
        specs = (*expected_tensors(config), *vision_tensors(config))
        tensors = [(spec, spec.stored_bytes) for spec in specs]
    parts = _by_part(tensors)
    subtotals = (
        _sum("backbone, text, without tables", (parts[key] for key in parts if key not in _APART)),
        _sum("DSpark", (parts[key] for key in parts if key in _DRAFT)),
        _sum("all but Engram tables", (parts[key] for key in parts if key is not Component.ENGRAM_TABLE)),
    )
    total = _sum("total", parts.values())
    resident, available = resident_bytes(config), available_memory_bytes()
    return ModelSummary(
        path=str(path),
        has_weights=is_stored,
        is_quantized=config.is_quantized,
        components=tuple(parts.values()),
        subtotals=subtotals,
        num_tensors=total.num_tensors,
        num_parameters=total.num_parameters,
        stored_bytes=total.stored_bytes,
        layers=layer_roles(config),
        resident_bytes=resident,
        available_bytes=available,
        fits=available is None or resident <= available,
    )


def resident_bytes(config: ModelConfig) -> int:
    """Bytes that the loaded model takes: float32 parameters, plus the largest one while it is decoded.

    Engram tables count nothing: their rows are read from the mapped files. Caches and activations depend on
    the requests and are not included.
    """
    sizes = [
        spec.num_parameters
        for spec in expected_tensors(config)
        if spec.component is not Component.ENGRAM_TABLE
    ]
    return _FLOAT32_BYTES * (sum(sizes) + max(sizes))


def require_fit(config: ModelConfig) -> None:
    """Refuse a model that this machine cannot hold, before anything is allocated.

    Raises:
        CapacityError: ``resident_bytes`` exceeds the memory this process can use.
    """
    needed, available = resident_bytes(config), available_memory_bytes()
    if available is not None and needed > available:
        raise CapacityError(
            f"the model needs {format_bytes(needed)} of memory, this process can use "
            f"{format_bytes(available)}; use a larger machine or a smaller model"
        )


def format_bytes(size: int) -> str:
    """Write a byte count with two decimals and a binary unit."""
    exponent = min(int(math.log2(size)) // 10, 5) if size > 0 else 0
    if exponent == 0:
        return f"{size} B"
    return f"{size / 1024**exponent:.2f} {'KMGTP'[exponent - 1]}iB"


def _by_part(tensors: Iterable[tuple[TensorSpec, int]]) -> dict[Component, ComponentSummary]:
    totals: dict[Component, list[int]] = {part: [0, 0, 0] for part in Component}
    for spec, size in tensors:
        total = totals[spec.component]
        total[0] += 1
        total[1] += spec.num_parameters
        total[2] += size
    return {
        part: ComponentSummary(
            name=str(part), num_tensors=count, num_parameters=parameters, stored_bytes=size
        )
        for part, (count, parameters, size) in totals.items()
        if count
    }


def _sum(name: str, parts: Iterable[ComponentSummary]) -> ComponentSummary:
    chosen = list(parts)
    return ComponentSummary(
        name=name,
        num_tensors=sum(part.num_tensors for part in chosen),
        num_parameters=sum(part.num_parameters for part in chosen),
        stored_bytes=sum(part.stored_bytes for part in chosen),
    )
