"""The sequential part of drafting in one call gives the bytes of its ops one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.kernels import chains, draft_chains
from deepinfer.kernels.interface import Ops

Draw = Callable[..., torch.Tensor]


def drawn(cpu: Ops, draw: Draw, num_blocks: int) -> tuple[object, ...]:
    size, width, rank, vocabulary = 5, 40, 12, 70
    base = (draw(num_blocks, size, vocabulary) * 4).round() / 4  # equal logits: ties go to the lowest id
    head = cpu.pack_linear((draw(vocabulary, rank) > 1).float())
    confidence = cpu.pack_linear(draw(1, width + rank) * 9)
    golden = torch.arange(num_blocks) * 7 % vocabulary
    return golden, draw(num_blocks, size, width), base, draw(vocabulary, rank).round(), head, confidence


@pytest.mark.parametrize("num_blocks", [1, 2, 9])
def test_one_call_gives_the_bytes_of_the_ops(cpu: Ops, draw: Draw, num_blocks: int) -> None:
    arguments = drawn(cpu, draw, num_blocks)
    one = cpu.markov_decode(*arguments)  # type: ignore[arg-type]
    other = chains.markov_decode(cpu, *arguments)  # type: ignore[arg-type]
    for mine, theirs in zip(one, other, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.contiguous().numpy().tobytes() == theirs.contiguous().numpy().tobytes()
    assert one[2].abs().max() == draft_chains.CONFIDENCE_CLAMP, "the clamp was reached"


def test_a_block_depends_on_its_own_row_alone(cpu: Ops, draw: Draw) -> None:
    golden, states, base, embed, head, confidence = drawn(cpu, draw, 4)
    together = cpu.markov_decode(golden, states, base, embed, head, confidence)  # type: ignore[arg-type]
    alone = cpu.markov_decode(
        golden[2:3],
        states[2:3],
        base[2:3],
        embed,
        head,
        confidence,  # type: ignore[arg-type, index]
    )
    for mine, theirs in zip(alone, together, strict=True):
        assert mine.numpy().tobytes() == theirs[2:3].contiguous().numpy().tobytes()
