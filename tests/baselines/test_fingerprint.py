"""Names of platforms, selections and shards."""

from __future__ import annotations

import pytest

from deepinfer.baselines.errors import BaselineError
from deepinfer.baselines.fingerprint import (
    cpu_platform,
    cpu_vendor,
    cuda_platform,
    describe_moved,
    moved_fields,
)
from deepinfer.baselines.key import Key
from deepinfer.baselines.selection import Selection, find_keys, shard_of


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("processor : 0\nvendor_id\t: AuthenticAMD\n", "amd"),
        ("vendor_id : GenuineIntel\n", "intel"),
        ("CPU implementer\t: 0x41\n", "arm"),
        ("vendor_id : Some New One\n", "some"),
    ],
)
def test_vendors_are_one_word(text: str, vendor: str) -> None:
    assert cpu_vendor(text) == vendor


def test_platforms_are_readable() -> None:
    assert cpu_platform("AVX512", "intel") == "cpu-intel-avx512"
    assert cuda_platform((9, 0), "NVIDIA H200") == "cuda-sm90-h200"
    assert cuda_platform((12, 0), "NVIDIA GeForce RTX 5090") == "cuda-sm120-rtx-5090"


def test_moved_fields_are_those_that_changed_came_or_went() -> None:
    moved = moved_fields(
        {"torch": "2.13", "mkl": "1", "numpy": "2"}, {"torch": "2.14", "numpy": "2", "cuda": "13"}
    )
    assert moved == {"torch": ("2.13", "2.14"), "mkl": ("1", None), "cuda": (None, "13")}
    assert describe_moved(moved) == "cuda absent -> 13, mkl 1 -> absent, torch 2.13 -> 2.14"
    assert describe_moved({}) == "no recorded provenance moved"


KEYS = [
    Key.of(sample, workload=workload, model="mini", platform=platform)
    for platform in ("portable", "cpu-amd-avx2")
    for workload in ("prose.document.256", "code.document.256")
    for sample in ("a", "b[0:3]")
]


@pytest.mark.parametrize(
    ("globs", "count"),
    [
        ({}, 8),
        ({"workload": "prose"}, 4),
        ({"workload": "prose.*"}, 4),
        ({"platform": "cpu-*", "sample": "a"}, 2),
        ({"sample": "b[0:3]"}, 4),
        ({"model": "other"}, 0),
    ],
)
def test_globs_select(globs: dict[str, str], count: int) -> None:
    assert sum(Selection(**globs).matches(key) for key in KEYS) == count


def test_keys_are_found_by_text_sample_or_glob() -> None:
    assert find_keys(KEYS, [str(KEYS[0])]) == [KEYS[0]]
    assert len(find_keys(KEYS, ["b[0:3]"])) == 4
    assert len(find_keys(KEYS, ["portable/*", "a"])) == 6
    with pytest.raises(BaselineError, match="no such key"):
        find_keys(KEYS, ["c"])


def test_names_are_for_the_eye_and_digests_for_equality() -> None:
    left = Key.of("a", workload="w", model="old-name", platform="portable", model_digest="ab" * 32)
    right = Key.of("a", workload="w", model="new-name", platform="portable", model_digest="ab" * 32)
    assert left == right
    assert left != Key.of("a", workload="w", model="old-name", platform="portable", model_digest="cd" * 32)


@pytest.mark.parametrize("sample", ["", "two\nlines", "bell\a"])
def test_ids_that_would_break_a_line_are_refused(sample: str) -> None:
    with pytest.raises(BaselineError):
        Key.of(sample, workload="w", model="m", platform="p")


@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_sample_is_in_exactly_one_shard(count: int) -> None:
    for index in range(50):
        assert sum(shard_of(index, (i, count)) for i in range(1, count + 1)) == 1
