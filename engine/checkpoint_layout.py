"""Which file holds which tensor of a checkpoint folder, checked against the configuration; headers only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from deepinfer.engine.errors import CheckpointError
from deepinfer.engine.inventory import TensorSpec, expected_tensors
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.safetensors_header import StoredTensor, read_safetensors_header

SINGLE_FILE = "model.safetensors"
"""File of an unsharded checkpoint."""
INDEX_FILE = "model.safetensors.index.json"
"""Index of a sharded checkpoint."""
_IGNORED = re.compile(r"(vision|aligner)\.|image_|mtp\.\d+\.(embed|head)\.")
_MAX_NAMES = 8


class TensorMismatchError(CheckpointError):
    """The tensors of a checkpoint are not those its configuration asks for.

    The message is one line and names at most eight tensors of each kind; the attributes hold all of them.

    Attributes:
        missing: expected names that no file holds.
        leftover: stored names that the model has no place for.
        mis_shaped: ``name is [stored shape], expected [shape]``.
        mis_typed: ``name is DTYPE, expected DTYPE or DTYPE``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        missing: Iterable[str],
        leftover: Iterable[str],
        mis_shaped: Iterable[str],
        mis_typed: Iterable[str],
    ) -> None:
        """Build the one-line message from the four lists."""
        self.missing = tuple(missing)
        self.leftover = tuple(leftover)
        self.mis_shaped = tuple(mis_shaped)
        self.mis_typed = tuple(mis_typed)
        parts = [
            f"{len(names)} {what} ({_some(names)})"
            for what, names in (
                ("missing", self.missing),
                ("leftover", self.leftover),
                ("of the wrong shape", self.mis_shaped),
                ("of the wrong dtype", self.mis_typed),
            )
            if names
        ]
        super().__init__(
            f"{folder}: tensors do not match config.json: {', '.join(parts)}; "
            "check that config.json and the weights belong together"
        )


def has_weights(folder: Path) -> bool:
    """Whether ``folder`` holds a single-file or sharded checkpoint."""
    return (folder / SINGLE_FILE).exists() or (folder / INDEX_FILE).exists()


def read_layout(folder: Path, config: ModelConfig) -> dict[str, tuple[TensorSpec, StoredTensor]]:
    """Match the files of ``folder`` with the tensors that ``config`` asks for.

    Returns:
        For each expected tensor, in the order of ``expected_tensors``, what was expected and where it lies.

    Raises:
        TensorMismatchError: tensors are missing, left over, or have a wrong shape or dtype.
        CheckpointError: a file is absent or damaged, or the index and the shards disagree.
    """
    stored = _drop_ignored(_read_stored(folder), folder)
    layout: dict[str, tuple[TensorSpec, StoredTensor]] = {}
    missing: list[str] = []
    mis_shaped: list[str] = []
    mis_typed: list[str] = []
    for spec in expected_tensors(config):
        tensor = stored.pop(spec.name, None)
        if tensor is None:
            missing.append(spec.name)
            continue
        if tensor.shape != spec.shape:
            mis_shaped.append(f"{spec.name} is {list(tensor.shape)}, expected {list(spec.shape)}")
        if tensor.dtype not in spec.dtypes:
            mis_typed.append(f"{spec.name} is {tensor.dtype}, expected {' or '.join(spec.dtypes)}")
        layout[spec.name] = (spec, tensor)
    if missing or stored or mis_shaped or mis_typed:
        raise TensorMismatchError(
            folder, missing=missing, leftover=stored, mis_shaped=mis_shaped, mis_typed=mis_typed
        )
    return layout


def _read_stored(folder: Path) -> dict[str, StoredTensor]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise CheckpointError(f"{folder}: holds both {SINGLE_FILE} and {INDEX_FILE}; remove the stale one")
    if single.exists():
        return read_safetensors_header(single)
    if not index.exists():
        raise CheckpointError(
            f"{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}; give a checkpoint folder"
        )
    promised = _read_index(index)
    stored: dict[str, StoredTensor] = {}
    for shard in sorted(set(promised.values())):
        file = folder / shard
        if not file.exists():
            raise CheckpointError(f"{file}: shard is missing, {INDEX_FILE} names it; download it again")
        tensors = read_safetensors_header(file)
        absent = [name for name, at in promised.items() if at == shard and name not in tensors]
        if absent:
            raise CheckpointError(
                f"{file}: lacks {len(absent)} tensors that {INDEX_FILE} promises ({_some(absent)})"
            )
        twice = sorted(stored.keys() & tensors.keys())
        if twice:
            raise CheckpointError(
                f"{file}: holds {len(twice)} tensors of another shard again ({_some(twice)})"
            )
        stored |= tensors
    return stored


def _read_index(file: Path) -> dict[str, str]:
    try:
        document = json.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged index ({error}); download it again") from None
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{file}: damaged index (no weight_map object); download it again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard or Path(shard).name != shard:
            raise CheckpointError(f"{file}: damaged index ({name} is in {shard!r}, which is no file name)")
    return weight_map


def _drop_ignored(stored: dict[str, StoredTensor], folder: Path) -> dict[str, StoredTensor]:
    """Strip the optional ``model.`` prefix and leave out what the text model has no use for."""
    kept: dict[str, StoredTensor] = {}
    for stored_name, tensor in stored.items():
        name = stored_name.removeprefix("model.")
        if _IGNORED.match(name):
            continue
        if name in kept:
            raise CheckpointError(f"{folder}: holds {name} twice, with and without the prefix model.")
        kept[name] = tensor
    return kept


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - _MAX_NAMES} more" if len(listed) > _MAX_NAMES else ""
    return ", ".join(listed[:_MAX_NAMES]) + more
