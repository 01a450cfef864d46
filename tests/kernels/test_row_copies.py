"""Copies of rows of bytes move what they are told to, and nothing else."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.interface import Ops


def test_named_rows_arrive_and_others_stay(cpu: Ops, reference: Ops) -> None:
    for ops in (cpu, reference):
        source = torch.arange(60, dtype=torch.uint8).view(5, 12)
        target = torch.full((4, 16), 255, dtype=torch.uint8)
        to, rows = torch.tensor([2, -1, 0, 1]), torch.tensor([4, 3, 1, -1])
        assert ops.copy_rows_(target[:, :12], to, source, rows).data_ptr() == target.data_ptr()
        assert torch.equal(target[2, :12], source[4])
        assert torch.equal(target[0, :12], source[1])
        assert (target[[1, 3]] == 255).all()
        assert (target[:, 12:] == 255).all()


@pytest.mark.parametrize("width", [11, 13])
def test_another_width_is_refused(cpu: Ops, width: int) -> None:
    one, target, source = torch.zeros(1, dtype=torch.int64), torch.zeros(2, 12).byte(), torch.zeros(2, width)
    with pytest.raises(ValueError, match="both must be uint8"):
        cpu.copy_rows_(target, one, source.byte(), one)
