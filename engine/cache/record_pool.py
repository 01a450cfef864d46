"""Storage of fixed-size cache records in their packed bytes (model.md section 8, engine.md section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.model_config import ModelConfig
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords


@dataclass(frozen=True)
class RecordFormat:
    """How one vector of ``width`` values is stored.

    Attributes:
        kind: name that the ops know.
        width: values of a record.
        data_bytes: bytes of codes.
        scale_bytes: bytes of scales.
        sectioned: whether a block keeps all codes first and all scales after them.
    """

    kind: str
    width: int
    data_bytes: int
    scale_bytes: int
    sectioned: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of one record."""
        return self.data_bytes + self.scale_bytes


def _exact(width: int) -> RecordFormat:
    return RecordFormat("exact", width, 4 * width, 0)


def window_format(config: ModelConfig, exact: bool) -> RecordFormat:
    """Sliding-window latent of a token: MXFP8, 528 bytes at width 512."""
    width = config.head_dim
    return _exact(width) if exact else RecordFormat("mxfp8", width, width, width // 32)


def main_format(config: ModelConfig, exact: bool) -> RecordFormat:
    """Compressed latent: FP4 with e4m3 scales, 288 bytes at width 512, or MXFP8 if the model says so."""
    width = config.head_dim
    if exact or not config.use_fp4_sparse_kv:
        return window_format(config, exact)
    return RecordFormat("fp4", width, width // 2, width // 16)


def index_format(config: ModelConfig, exact: bool) -> RecordFormat:
    """Index key: MXFP4, 68 bytes at width 128; a block stores all codes, then all scales."""
    width = config.index_head_dim
    return _exact(width) if exact else RecordFormat("mxfp4", width, width // 2, width // 32, sectioned=True)


class RecordPool:
    """Records in groups (blocks or rings); record r lies in group ``r // per_group``."""

    def __init__(
        self,
        record: RecordFormat,
        num_groups: int,
        per_group: int,
        device: torch.device | None = None,
    ) -> None:
        """Allocate zeroed bytes."""
        self.record, self.per_group = record, per_group
        self._by_kernel_set: dict[str, BoundRecords] = {}
        self.buffer = torch.zeros(num_groups, per_group * record.num_bytes, dtype=torch.uint8, device=device)
        if record.sectioned:
            cut = per_group * record.data_bytes
            self.data = self.buffer[:, :cut].view(num_groups, per_group, record.data_bytes)
            self.scales = self.buffer[:, cut:].view(num_groups, per_group, record.scale_bytes)
        else:
            records = self.buffer.view(num_groups, per_group, record.num_bytes)
            self.data, self.scales = records[..., : record.data_bytes], records[..., record.data_bytes :]

    @property
    def records(self) -> torch.Tensor:
        """All records uint8 [groups, per_group, bytes], for formats that keep codes and scales together."""
        return self.buffer.view(self.buffer.shape[0], self.per_group, self.record.num_bytes)

    @property
    def flat(self) -> torch.Tensor:
        """The same, uint8 [records, bytes]."""
        return self.buffer.view(-1, self.record.num_bytes)

    def store(self, ops: Ops, values: torch.Tensor, rows: torch.Tensor) -> None:
        """Write float32 [n, width] as records ``rows`` int64 [n]; -1 skips a value."""
        ops.store_records(self.bound(ops), values, rows)

    def load(self, ops: Ops, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode records ``rows`` int64 [n] to float32 [n, width], into ``out`` if given; -1 gives zeros."""
        return ops.load_records(self.bound(ops), rows, out)

    def bound(self, ops: Ops) -> BoundRecords:
        """The records as a kernel set sees them."""
        if ops.name not in self._by_kernel_set:
            self._by_kernel_set[ops.name] = ops.bind_records(
                self.record.kind, self.record.width, self.data, self.scales
            )
        return self._by_kernel_set[ops.name]
