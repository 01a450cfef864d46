"""Stored weights as exact float32 tensors: memory-mapped, decoded one at a time, never all at once."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from deepinfer.engine.checkpoint_layout import read_layout
from deepinfer.engine.config import load_model_config
from deepinfer.engine.engram_table import EngramTable
from deepinfer.engine.errors import CheckpointError, NonFiniteError
from deepinfer.engine.inventory import TensorSpec
from deepinfer.engine.mapped_file import map_file
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.safetensors_header import StoredTensor
from deepinfer.engine.weight_formats import dequantize_fp4_rows, dequantize_fp8_block, dequantize_fp8_rows

_TORCH_DTYPES = MappingProxyType(
    {
        "BF16": torch.bfloat16,
        "F32": torch.float32,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E8M0": torch.uint8,
        "I8": torch.int8,
        "U8": torch.uint8,
    }
)
_NAN_SCALE = 255


class Checkpoint:
    """The tensors of one checkpoint folder; ``open_checkpoint`` makes it.

    Files are mapped on first use and stay mapped while the object or any view of it lives; the mapping is
    private, so that nothing can write to the file through it.

    Attributes:
        directory: the folder.
        config: the configuration that the tensors were checked against.
    """

    def __init__(
        self, directory: Path, config: ModelConfig, layout: dict[str, tuple[TensorSpec, StoredTensor]]
    ) -> None:
        """Wrap a layout that ``read_layout`` has checked."""
        self.directory = directory
        self.config = config
        self._layout = layout
        self._maps: dict[Path, Tensor] = {}
        self._device = torch.device("cpu")

    def on(self, device: torch.device) -> Checkpoint:
        """The same files; ``weight`` decodes on the host as ever and hands its result out on ``device``."""
        twin = copy(self)
        twin._device = device
        return twin

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that ``weight`` takes, in the order of model.md section 9; scales are not among them."""
        return tuple(name for name, (spec, _) in self._layout.items() if not spec.is_scale)

    def raw(self, name: str) -> Tensor:
        """The tensor as stored, without a copy: BF16, F32, F8_E4M3, packed int8 codes, or uint8 scales.

        Raises:
            KeyError: the model has no tensor of this name.
            CheckpointError: the file has vanished or shrunk since it was opened.
        """
        _, stored = self._layout[name]
        data = self._payload(stored)
        dtype = _TORCH_DTYPES[stored.dtype]
        if stored.start % dtype.itemsize:
            # The format does not promise alignment, and torch has no misaligned views: copy this one tensor.
            data = data.clone()
        return data.view(dtype).view(stored.shape)

    def weight(self, name: str) -> Tensor:
        """The decoded parameter, float32, exact: a new tensor that owns its memory.

        FP8 and FP4 weights are multiplied by their ``.scale``, experts unpacked to [rows, columns].

        Raises:
            KeyError: the model has no parameter of this name.
            CheckpointError: a scale byte is 255, which stands for NaN.
            NonFiniteError: a decoded value is NaN or infinite.
        """
        if self._layout[name][0].is_scale:
            raise KeyError(f"{name} is a scale; ask for its weight")
        stored = self.raw(name)
        if stored.dtype in (torch.bfloat16, torch.float32):
            decoded = stored.to(torch.float32, copy=True)
        else:
            scale = self._scale(name)
            self._refuse_nan_scale(name, scale)
            if stored.dtype in (torch.int8, torch.uint8):
                decoded = dequantize_fp4_rows(stored, scale)
            elif name.endswith(".engram.embed.weight"):
                decoded = dequantize_fp8_rows(stored, scale)
            else:
                decoded = dequantize_fp8_block(stored, scale)
        self._refuse_non_finite(name, decoded)
        return decoded.to(self._device)

    def engram_table(self, layer: int) -> EngramTable:
        """The Engram table of ``layer``, mapped, to gather and decode rows of; the rest is never read.

        Raises:
            KeyError: the layer has no Engram.
            CheckpointError: the file has vanished or shrunk since it was opened.
        """
        name = f"layers.{layer}.engram.embed.weight"
        table = self.raw(name)
        scale = self._scale(name) if table.dtype is torch.float8_e4m3fn else None
        return EngramTable(name, self._layout[name][1].file, table, scale)

    def _scale(self, name: str) -> Tensor:
        return self.raw(name.removesuffix(".weight") + ".scale")

    def _refuse_nan_scale(self, name: str, scale: Tensor) -> None:
        if scale.numel() and int(scale.max()) == _NAN_SCALE:
            raise CheckpointError(
                f"{self._layout[name][1].file}: the scale of {name} holds byte 255, which stands for NaN; "
                "the checkpoint is damaged"
            )

    def _refuse_non_finite(self, name: str, decoded: Tensor) -> None:
        # The extremes of a tensor are finite if and only if all of it is, and are found much faster.
        extremes = torch.stack(torch.aminmax(decoded)) if decoded.numel() else decoded
        if not bool(torch.isfinite(extremes).all()):
            count = int((~torch.isfinite(decoded)).sum())
            raise NonFiniteError(
                f"{self._layout[name][1].file}: {name} holds {count} values that are NaN or infinite; "
                "the checkpoint is damaged"
            )

    def _payload(self, stored: StoredTensor) -> Tensor:
        if stored.file not in self._maps:
            self._maps[stored.file] = map_file(stored.file)
        data = self._maps[stored.file][stored.start : stored.start + stored.size_bytes]
        if data.numel() != stored.size_bytes:
            raise CheckpointError(f"{stored.file}: has become shorter since it was opened; open it again")
        return data


def open_checkpoint(path: Path, config: ModelConfig | None = None) -> Checkpoint:
    """Open a checkpoint folder; reads headers only.

    Args:
        path: folder with ``model.safetensors`` or ``model.safetensors.index.json`` and its shards.
        config: what the tensors must match; the folder's own config.json if not given.

    Raises:
        ConfigError: config.json is unusable.
        CheckpointError: the folder or a file in it is unusable; ``TensorMismatchError`` if the tensors are
            readable but not those of the configuration.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: not a folder; give the folder of a checkpoint")
    config = load_model_config(path) if config is None else config
    return Checkpoint(path, config, read_layout(path, config))
