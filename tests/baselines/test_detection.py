"""One flipped bit anywhere in a store is found, and named; bits that only look alike are kept apart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepinfer.baselines.canonical import HOLE_BITS, Sample
from deepinfer.baselines.committing import Author
from deepinfer.baselines.errors import BaselineError
from deepinfer.baselines.fsck import check_store
from deepinfer.baselines.store import Baselines

AWKWARD_BITS = (
    0x80000000,  # -0.0
    0x00000000,
    0x00000001,  # the smallest denormal
    0x807FFFFF,
    0x7F800001,  # a signalling NaN
    0x7FC00001,  # quiet NaNs with a payload
    0xFFC00000,
    0xFFABCDEF,
    0xFF800000,  # -infinity
    0xBF800000,
    HOLE_BITS,
)


@pytest.fixture
def small_store(quick_dir: Path, faults: Any) -> Path:
    """Two revisions, two blobs, one key locked and one waiting."""
    root = quick_dir / "store"
    writer = Baselines(root).writer(Author(reason="first", provenance={"torch": "2.13"}))
    writer.lock([(faults.make_key(0), faults.make_sample(1, length=3))])
    writer.refresh([(faults.make_key(1), faults.make_sample(2, length=3))])
    shutil.rmtree(root / "locks")
    shutil.rmtree(root / "tmp")
    return root


def finds(root: Path) -> list[str]:
    """What fsck says is wrong or was recovered."""
    try:
        report = check_store(Baselines(root), repair=False)
    except BaselineError as error:
        return [str(error)]
    return [*report.problems, *report.recovered]


def flips(root: Path, step: int, bits: int) -> tuple[int, list[tuple[str, int, int]]]:
    """Flip so many bits of every ``step``-th byte, one at a time; how many, and those that fsck missed."""
    assert finds(root) == []
    num_flips, missed = 0, []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for place in range(0, len(content), step):
            for bit in ((place // step + k) % 8 for k in range(bits)):
                changed = bytearray(content)
                changed[place] ^= 1 << bit
                path.write_bytes(changed)
                num_flips += 1
                found = finds(root)
                if not found or path.name.split(".")[0] not in found[0]:
                    missed.append((path.name, place, bit))
        path.write_bytes(content)
    assert finds(root) == []
    return num_flips, missed


def test_flipped_bits_all_over_the_store_are_found_and_their_file_named(small_store: Path) -> None:
    num_flips, missed = flips(small_store, 7, 1)
    assert missed == []
    assert num_flips > 700


@pytest.mark.slow
def test_every_single_bit_is_found(small_store: Path) -> None:
    num_flips, missed = flips(small_store, 1, 8)
    assert missed == []
    assert num_flips == 8 * sum(path.stat().st_size for path in small_store.rglob("*") if path.is_file())


def test_a_check_itself_sees_a_damaged_blob_and_a_damaged_ledger(small_store: Path, faults: Any) -> None:
    key, sample = faults.make_key(0), faults.make_sample(1, length=3)
    state = Baselines(small_store).state()
    [blob] = [
        path for path in (small_store / "blobs").glob("*/*") if path.stem == state.locked_entry(key).blob
    ]
    content = bytearray(blob.read_bytes())
    content[len(content) // 3] ^= 4
    blob.write_bytes(content)
    outcome = Baselines(small_store).check(key, sample.token_ids, sample.logprobs)
    assert (outcome.status, outcome.exit_code) == ("damaged", 3)
    assert blob.name in outcome.reason
    line = (small_store / "ledger" / "000000000002.jsonl").read_bytes()
    (small_store / "ledger" / "000000000002.jsonl").write_bytes(line.replace(b"refresh", b"rehresf"))
    with pytest.raises(BaselineError, match=r"000000000002\.jsonl line 1") as caught:
        Baselines(small_store).check(key, sample.token_ids, sample.logprobs)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (lambda root: (root / "ledger" / "000000000001.jsonl").unlink(), "000000000001.jsonl: is missing"),
        (lambda root: (root / "ledger" / "000000000002.jsonl").unlink(), "000000000002.jsonl: HEAD says"),
        (lambda root: cut(root / "ledger" / "000000000002.jsonl", 20), "000000000002.jsonl line 2"),
        (lambda root: cut(next((root / "blobs").glob("*/*")), 20), "sha256"),
        (lambda root: next((root / "blobs").glob("*/*")).unlink(), "is missing"),
    ],
    ids=["first revision", "last revision", "cut line", "cut blob", "lost blob"],
)
def test_the_first_bad_record_is_named(small_store: Path, damage: Any, names: str) -> None:
    damage(small_store)
    assert names in finds(small_store)[0]


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda head: head.unlink(), "is missing"),
        (lambda head: cut(head, 7), "is torn"),
        (lambda head: head.write_bytes(b""), "is torn"),
    ],
    ids=["lost", "torn", "empty"],
)
def test_a_lost_or_torn_head_is_recovered_and_said(small_store: Path, damage: Any, says: str) -> None:
    head = small_store / "HEAD"
    before = head.read_bytes()
    damage(head)
    assert Baselines(small_store).state().number == 2, "reading goes by the chain"
    report = check_store(Baselines(small_store))
    assert report.problems == []
    assert says in report.recovered[0]
    assert "recovered from the chain" in report.recovered[0]
    assert head.read_bytes() == before


def test_a_head_left_behind_by_a_killed_writer_is_no_damage(small_store: Path, faults: Any) -> None:
    old = (small_store / "HEAD").read_bytes()
    Baselines(small_store).writer(Author()).accept([faults.make_key(1)])
    (small_store / "HEAD").write_bytes(old)
    report = check_store(Baselines(small_store))
    assert (report.problems, report.num_revisions) == ([], 3)
    assert "ended between publishing and saying so" in report.recovered[0]


def test_any_bits_survive_a_round_trip(quick_dir: Path, faults: Any) -> None:
    bits = np.array([*AWKWARD_BITS, *range(0x7F800000, 0x7F800040)], dtype=np.uint32)
    sample = Sample(token_ids=np.arange(len(bits), dtype=np.int32), logprobs=bits.view(np.float32))
    store = Baselines(quick_dir / "store")
    store.writer(Author()).lock([(faults.make_key(0), sample)])
    entry = Baselines(quick_dir / "store").state().locked_entry(faults.make_key(0))
    assert entry is not None
    again = Baselines(quick_dir / "store")
    again.state()
    assert again.sample(faults.make_key(0), entry).bits.tobytes() == bits.tobytes()


@pytest.mark.parametrize(("left", "right"), [(0x80000000, 0x00000000), (0x7FC00001, 0x7FC00002)])
def test_zeros_of_either_sign_and_nans_of_other_payloads_are_different(
    quick_dir: Path, faults: Any, left: int, right: int
) -> None:
    def sample(bits: int) -> Sample:
        values = np.array([0xBF800000, bits], dtype=np.uint32).view(np.float32)
        return Sample(token_ids=np.array([1, 2], dtype=np.int32), logprobs=values)

    store = Baselines(quick_dir / "store")
    writer = store.writer(Author())
    writer.lock([(faults.make_key(0), sample(left))])
    assert [change.kind for change in writer.refresh([(faults.make_key(0), sample(right))])] == ["pending"]
    assert writer.refresh([(faults.make_key(0), sample(right))]) == []
