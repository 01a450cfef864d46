"""Random words: published answers, and words of their own for every seed, position, purpose and sample."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer.kernels.rng import SAMPLE, UInt32, philox, random_words

RESIDUAL, ACCEPTANCE = 1, 2


def words(seed: int, position: int, purpose: int = SAMPLE, sample: int = 0, num_words: int = 4) -> list[str]:
    drawn = random_words(
        np.array([seed], np.uint64),
        np.array([position], np.int64),
        purpose,
        np.array([sample], np.int64),
        num_words,
    )
    assert drawn.dtype == np.uint32
    assert drawn.shape == (1, num_words)
    return [f"{word:08x}" for word in drawn[0].tolist()]


def ones(count: int) -> UInt32:
    return np.full(count, 0xFFFFFFFF, np.uint32)


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ([0, 0, 0, 0], [0, 0], "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_philox_gives_the_authors_answers(counter: list[int], key: list[int], want: str) -> None:
    got = philox(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert " ".join(f"{word:08x}" for word in got.tolist()) == want


@pytest.mark.parametrize(
    ("seed", "position", "purpose", "want"),
    [
        (0, 0, SAMPLE, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (1234, 17, SAMPLE, "550b15f6 2f59d304 40d1e22e ae7c8ac3"),
        (1234, 17, RESIDUAL, "65fdc4f5 a994506c bb803089 d372bbdb"),
        (1234, 17, ACCEPTANCE, "fcf557d3 6739e81a 941c7d71 24ff0454"),
        (1234, 7, SAMPLE, "f233ac64 f66687d7 91020702 7f893a6d"),
        (1234, 7, RESIDUAL, "51292561 86933889 c58253a5 0f47603b"),
        (1234, 7, ACCEPTANCE, "d53576b9 8f62740c 69cbb16e c081e398"),
        (2**63 + 5, 100, SAMPLE, "d7911bc7 1aee9635 1075ad13 bfe11a37"),
        (2**64 - 1, 4096, SAMPLE, "059dabd1"),
        (1234 + 1000000007, 18, SAMPLE, "a64d44c2"),
    ],
)
def test_streams_give_the_published_words(seed: int, position: int, purpose: int, want: str) -> None:
    """engine.md Appendix A and model.md section 15.5."""
    assert " ".join(words(seed, position, purpose)).startswith(want)


def test_blocks_follow_each_other() -> None:
    long = words(1234, 17, num_words=10)
    assert long[:4] == words(1234, 17)
    counter = np.array([[1, 0, 51, 0], [2, 0, 51, 0]], np.uint32)
    later = philox(counter, np.array([1234, 0], np.uint32)).flatten()
    assert long[4:] == [f"{word:08x}" for word in later[:6].tolist()]


def test_streams_beyond_32_bits_use_the_fourth_counter_word() -> None:
    position = 2**33 + 1
    stream = 3 * position
    counter = np.array([0, 7, stream & 0xFFFFFFFF, stream >> 32], np.uint32)
    want = philox(counter, np.array([5, 2], np.uint32))
    assert words(2 * 2**32 + 5, position, sample=7) == [f"{word:08x}" for word in want.tolist()]


def test_every_part_of_the_key_changes_every_word() -> None:
    kinds = [
        words(1234, 17),
        words(1235, 17),
        words(1234 + 2**32, 17),
        words(1234, 18),
        words(1234, 17, RESIDUAL),
        words(1234, 17, sample=1),
        words(1234, 17, sample=2**32 - 1),
    ]
    for column in zip(*kinds, strict=True):
        assert len(set(column)) == len(kinds)


def test_a_row_does_not_know_its_batch() -> None:
    seeds = np.array([2**64 - 1 - 977 * i for i in range(33)], np.uint64)
    positions, samples = np.arange(33, dtype=np.int64) ** 4, np.arange(33, dtype=np.int64)[::-1].copy()
    together = random_words(seeds, positions, SAMPLE, samples, 16)
    for i in range(33):
        row = slice(i, i + 1)
        alone = random_words(seeds[row], positions[row], SAMPLE, samples[row], 16)
        assert alone.tobytes() == together[row].tobytes()
    assert random_words(seeds[:0], positions[:0], SAMPLE, samples[:0], 16).shape == (0, 16)


@pytest.mark.parametrize(
    ("position", "purpose", "sample"), [(-1, 0, 0), (0, 3, 0), (0, -1, 0), (0, 0, -1), (0, 0, 2**32)]
)
def test_impossible_streams_are_refused(position: int, purpose: int, sample: int) -> None:
    with pytest.raises(ValueError, match=r"outside|must be"):
        words(1, position, purpose, sample)
