"""A sampled row is the same alone, in any batch, at any place, on any number of threads.

Compared as bytes.
"""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.dispatch import select_ops

ROWS = 33
Arguments = tuple[torch.Tensor, ...]
TWO_THREADS = select_ops("cpu", bf16=False, num_threads=2)
ONE_THREAD = select_ops("cpu", bf16=False, num_threads=1)


def mixed_rows(vocabulary: int) -> Arguments:
    """Rows of every kind: greedy, plain, each filter, all of them; logits with exact ties."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(ROWS, vocabulary, generator=generator) * 4).round() / 2
    kind = torch.arange(ROWS)
    return (
        logits,
        torch.tensor([0.0, 0.3, 1.0, 7.5])[kind % 4],
        torch.tensor([1.0, 0.5, 0.9])[kind % 3],
        torch.tensor([0, 1, 3, 40, 10**6])[kind % 5],
        torch.tensor([0.0, 0.1])[kind % 2],
        torch.randint(0, 2**32, (ROWS, 16), generator=generator),
    )


def as_bytes(result: tuple[torch.Tensor, torch.Tensor]) -> list[tuple[int, int]]:
    return list(zip(result[0].tolist(), result[1].view(torch.int32).tolist(), strict=True))


@pytest.mark.parametrize("vocabulary", [1, 24, 1000, 4096, 8200])
def test_rows_do_not_depend_on_their_company(vocabulary: int) -> None:
    arguments = mixed_rows(vocabulary)
    alone = [as_bytes(ONE_THREAD.sample(*(a[i : i + 1] for a in arguments)))[0] for i in range(ROWS)]
    for ops in (ONE_THREAD, TWO_THREADS):
        for size in (2, 7, ROWS):
            for first in (0, 1, 13, ROWS - size):
                if first + size <= ROWS:
                    part = ops.sample(*(a[first : first + size] for a in arguments))
                    assert as_bytes(part) == alone[first : first + size]
        backwards = ops.sample(*(a.flip(0) for a in arguments))
        assert as_bytes(backwards) == alone[::-1]


def test_strided_and_offset_inputs_give_the_same_bytes() -> None:
    arguments = mixed_rows(1000)
    want = as_bytes(ONE_THREAD.sample(*arguments))
    strided = [torch.stack([a, a + 1], -1)[..., 0] for a in arguments]
    assert not strided[0].is_contiguous()
    assert as_bytes(ONE_THREAD.sample(*strided)) == want
    logits = arguments[0]
    offset = torch.cat([logits.flatten()[:1], logits.flatten()])[1:].view(logits.shape)
    assert as_bytes(ONE_THREAD.sample(offset, *arguments[1:])) == want


def test_an_empty_batch_has_no_tokens() -> None:
    ids, logprobs = ONE_THREAD.sample(*(a[:0] for a in mixed_rows(24)))
    assert ids.shape == logprobs.shape == (0,)


def test_inputs_are_not_changed() -> None:
    arguments = mixed_rows(1000)
    copies = [a.clone() for a in arguments]
    ONE_THREAD.sample(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))


def test_the_check_sees_words_that_depend_on_the_place() -> None:
    """Negative control: random words handed out by place in the batch move the tokens of a flipped batch."""
    arguments = mixed_rows(1000)
    want = as_bytes(ONE_THREAD.sample(*arguments))
    flipped = [a.flip(0) for a in arguments[:-1]]
    moved = ONE_THREAD.sample(*(*flipped, arguments[-1]))
    assert as_bytes(moved)[::-1] != want
