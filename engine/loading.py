"""Weights in memory: loaded once, shared by every engine that runs on them."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import torch

from deepinfer.engine.checkpoint import Checkpoint, open_checkpoint
from deepinfer.engine.errors import CapacityError
from deepinfer.engine.inspection import format_bytes, require_fit, resident_bytes
from deepinfer.engine.model.draft import Draft
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.model_config import ModelConfig
from deepinfer.kernels.interface import Ops


def require_device_fit(config: ModelConfig, device: torch.device) -> None:
    """Refuse a model that a CUDA device cannot hold, before anything is allocated there.

    Raises:
        CapacityError: ``resident_bytes`` exceeds the free memory of the device.
    """
    needed, (free, _) = resident_bytes(config), torch.cuda.mem_get_info(device)
    if needed > free:
        raise CapacityError(
            f"the model needs {format_bytes(needed)} of device memory, {format_bytes(free)} are free there; "
            "use a larger device, --device cpu or a smaller model"
        )


class LoadedModel:
    """A checkpoint packed for one kernel set; the draft part is read when first needed."""

    def __init__(self, directory: Path, config: ModelConfig, ops: Ops) -> None:
        """Load the backbone tensor by tensor.

        Raises:
            CapacityError: it does not fit this machine or its device; raised before any allocation.
            CheckpointError, NonFiniteError: the checkpoint is unusable.
        """
        require_fit(config) if ops.device.type == "cpu" else require_device_fit(config, ops.device)
        self.checkpoint: Checkpoint = open_checkpoint(directory, config).on(ops.device)
        self.backbone = Transformer(self.checkpoint, ops)

    @cached_property
    def draft(self) -> Draft:
        """The draft stages, bound to the backbone as loaded."""
        return Draft(self.checkpoint, self.backbone)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over names and contents of config, tokenizer and weight files."""
        digest = hashlib.sha256()
        for path in sorted(self.checkpoint.directory.iterdir()):
            if path.name in ("config.json", "tokenizer.json") or path.suffix == ".safetensors":
                with path.open("rb") as stream:
                    digest.update(path.name.encode() + b"\0" + hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()
