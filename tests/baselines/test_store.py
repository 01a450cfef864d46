"""The flow of a store: lock, check, refresh, accept, reject, prune, history, upgrade."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepinfer.baselines.canonical import as_sample
from deepinfer.baselines.check import CheckStatus
from deepinfer.baselines.committing import Author
from deepinfer.baselines.errors import BaselineError, LockError, StoreError, UnlockedError
from deepinfer.baselines.fsck import check_store
from deepinfer.baselines.holders import break_claim, list_locks
from deepinfer.baselines.key import Key
from deepinfer.baselines.locks import LockKind
from deepinfer.baselines.pending import AlreadyLockedError
from deepinfer.baselines.store import Baselines, LockOptions
from deepinfer.baselines.store_file import StoreFile
from deepinfer.baselines.summary import canonical_digest, measure, summarise
from deepinfer.baselines.upgrade import upgrade_store


@pytest.fixture
def store(quick_dir: Path, faults: Any) -> Baselines:
    """Four keys locked under torch 2.13."""
    made = Baselines(quick_dir / "store")
    made.writer(author("2.13")).lock(faults.make_samples(1, range(4)))
    return made


def author(torch: str, reason: str = "") -> Author:
    return Author(reason=reason, provenance={"torch": torch, "threads": "2"})


def test_three_lines_lock_and_check_for_another_project(quick_dir: Path) -> None:
    baselines = Baselines(quick_dir / "theirs")
    key = Key.of("greeting", workload="chat", model="theirs", platform="cuda-sm90-h200")
    ids, logprobs = [5, 6, 7], np.array([np.nan, -1.5, -0.25], np.float32)
    assert baselines.lock(key, ids, logprobs)
    assert not baselines.lock(key, ids, logprobs), "locking the same bits again is nothing"
    assert baselines.check(key, ids, logprobs).is_same
    moved = logprobs.copy()
    moved.view(np.uint32)[2] ^= 1
    outcome = baselines.check(key, ids, moved)
    assert (outcome.status, outcome.exit_code) == (CheckStatus.DIFFERENT, 1)
    assert outcome.first is not None
    assert (outcome.first.position, outcome.first.ulp) == (2, 1)
    with pytest.raises(AlreadyLockedError):
        baselines.lock(key, ids, moved)


def test_what_is_not_locked_is_missing(store: Baselines, faults: Any) -> None:
    sample = faults.make_sample(1)
    outcome = store.check(faults.make_key(9), sample.token_ids, sample.logprobs)
    assert (outcome.status, outcome.exit_code) == (CheckStatus.MISSING, 3)
    with pytest.raises(UnlockedError, match="holds no baselines"):
        Baselines(store.root / "nowhere").check(faults.make_key(0), sample.token_ids, sample.logprobs)


def test_values_that_are_not_finite_are_inconclusive_and_never_locked(store: Baselines, faults: Any) -> None:
    values = np.array([-1.0, np.inf], np.float32)
    outcome = store.check(faults.make_key(0), [1, 2], values)
    assert (outcome.status, outcome.exit_code) == (CheckStatus.INCONCLUSIVE, 5)
    with pytest.raises(BaselineError) as caught:
        store.lock(faults.make_key(8), [1, 2], values)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("ids", "values", "message"),
    [
        ([], np.zeros(0, np.float32), "give"),
        ([1, 2], np.zeros(3, np.float32), "as many"),
        ([1.5], np.zeros(1, np.float32), "integers"),
        ([1 << 40], np.zeros(1, np.float32), "int32"),
        ([1], np.array([0.1]), "float32 cannot hold"),
        ([1], np.array([1]), "give float32"),
    ],
)
def test_arrays_that_cannot_be_a_sample_are_refused(ids: Any, values: Any, message: str) -> None:
    with pytest.raises(BaselineError, match=message):
        as_sample(ids, values)


def test_a_difference_names_what_moved(store: Baselines, faults: Any) -> None:
    sample = faults.make_sample(5)
    outcome = store.check(
        faults.make_key(0), sample.token_ids, sample.logprobs, provenance={"torch": "2.14", "threads": "2"}
    )
    assert outcome.moved == {"torch": ("2.13", "2.14")}
    assert "torch 2.13 -> 2.14" in outcome.reason


def test_refresh_waits_for_review_and_locks_nothing(store: Baselines, faults: Any) -> None:
    before = faults.digests(store.state().locked)
    writer = store.writer(author("2.14", "new torch"))
    changes = writer.refresh([*faults.make_samples(1, [0, 1]), *faults.make_samples(2, [2, 5])])
    assert [(change.kind, change.key.sample) for change in changes] == [
        ("pending", "doc-2"),
        ("pending", "doc-5"),
    ]
    state = store.state()
    assert faults.digests(state.locked) == before
    sample = dict(faults.make_samples(2, [2]))[faults.make_key(2)]
    assert store.check(faults.make_key(2), sample.token_ids, sample.logprobs).status is CheckStatus.DIFFERENT
    assert writer.refresh(faults.make_samples(2, [2])) == [], "the same bits once more are no news"
    [change] = writer.refresh(faults.make_samples(1, [2]))
    assert change.kind == "same", "bits that are locked again clear what waited"
    assert store.state().pending_entry(faults.make_key(2)) is None


def test_accept_keeps_the_provenance_of_the_bits(store: Baselines, faults: Any) -> None:
    store.writer(author("2.14")).refresh(faults.make_samples(2, [0]))
    store.writer(author("reviewer's own", "reviewed")).accept([faults.make_key(0)])
    state = store.state()
    entry = state.locked_entry(faults.make_key(0))
    assert entry is not None
    assert state.note_of(entry).provenance["torch"] == "2.14"
    with pytest.raises(UnlockedError, match="nothing waits"):
        store.writer(author("x")).accept([faults.make_key(0)])


def test_reject_leaves_what_is_locked(store: Baselines, faults: Any) -> None:
    before = canonical_digest(store.state().locked)
    store.writer(author("2.14")).refresh(faults.make_samples(2, [0]))
    store.writer(author("2.14")).reject([faults.make_key(0)])
    state = store.state()
    assert (canonical_digest(state.locked), state.pending_entry(faults.make_key(0))) == (before, None)


def test_orphans_are_those_of_the_same_texts_by_name(store: Baselines, faults: Any) -> None:
    store.state()
    assert store.orphans([faults.make_key(0), faults.make_key(2)]) == [faults.make_key(1), faults.make_key(3)]
    elsewhere = Key.of("doc-0", workload="other", model="tiny", platform="portable")
    assert store.orphans([elsewhere]) == []
    edited = Key.of(
        "doc-0", workload="texts", model="tiny", platform="portable", workload_digest="ab" * 32
    )  # the same name, other texts
    assert len(store.orphans([edited])) == 4


def test_prune_frees_what_no_key_needs(store: Baselines, faults: Any) -> None:
    writer = store.writer(author("2.14", "texts withdrawn"))
    assert writer.remove_blobs() == []
    writer.refresh(faults.make_samples(2, range(4)))
    writer.accept([faults.make_key(index) for index in range(4)])
    unused = measure(store).unused_bytes
    assert unused > 0
    assert sum(blob.size_bytes for blob in writer.remove_blobs()) == unused
    assert check_store(store).problems == []
    [change] = writer.remove([faults.make_key(3)])
    assert change.kind == "remove"
    assert store.state().locked_entry(faults.make_key(3)) is None
    writer.refresh(faults.make_samples(1, [0]))  # the content of a pruned blob comes back
    assert check_store(store).problems == []


def test_history_tells_everything_in_order(store: Baselines, faults: Any) -> None:
    store.writer(author("2.14", "look")).refresh(faults.make_samples(2, [0]))
    store.writer(author("2.14", "fine")).accept([faults.make_key(0)])
    told = [(info.note.action, info.note.reason, len(changes)) for info, changes in store.history()]
    assert told == [("lock", "", 4), ("refresh", "look", 1), ("accept", "fine", 1)]


def test_a_summary_is_exact_whatever_the_order(quick_dir: Path, faults: Any) -> None:
    samples = faults.make_samples(1, range(6))
    states = []
    for name, order in (("forward", samples), ("backward", samples[::-1])):
        made = Baselines(quick_dir / name)
        for sample in order:
            made.writer(Author()).lock([sample])
        states.append(made.state())
    left, right = ([row.perplexity for row in summarise(state)] for state in states)
    assert left == right
    assert canonical_digest(states[0].locked) == canonical_digest(states[1].locked)


def test_a_store_of_version_1_is_read_and_upgraded_on_request(store: Baselines, faults: Any) -> None:
    (store.root / "store.json").write_bytes(StoreFile(version=1, lock_kind=None).encode())
    old = Baselines(store.root)
    before = canonical_digest(old.state().locked)
    with pytest.raises(BaselineError, match="baseline upgrade"):
        old.writer(author("x"))
    assert upgrade_store(old, author("x", "new version"), LockKind.STRICT) == (1, 2)
    new = Baselines(store.root)
    assert canonical_digest(new.state().locked) == before
    assert new.require_store() == StoreFile(version=2, lock_kind=LockKind.STRICT)
    assert new.state().revisions[-1].note.action == "upgrade"
    new.writer(author("x")).refresh(faults.make_samples(2, [0]))
    assert upgrade_store(new, author("x")) == (2, 2)


def test_a_store_of_a_later_version_is_refused(store: Baselines) -> None:
    (store.root / "store.json").write_bytes(StoreFile(version=99, lock_kind=None).encode())
    with pytest.raises(BaselineError, match="upgrade deepinfer"):
        Baselines(store.root).state()


def test_a_folder_of_something_else_is_not_taken_over(quick_dir: Path) -> None:
    (quick_dir / "thesis.txt").write_text("years of work")
    with pytest.raises(BaselineError, match=r"thesis\.txt"):
        Baselines(quick_dir).writer(Author())


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_one_line(quick_dir: Path) -> None:
    quick_dir.chmod(0o500)
    with pytest.raises(StoreError):
        Baselines(quick_dir / "store").writer(Author())


def test_a_dead_holder_of_a_strict_lock_is_named_and_can_be_broken(
    quick_dir: Path, zygote: Any, faults: Any
) -> None:
    root = quick_dir / "store"
    options = LockOptions(kind=LockKind.STRICT, timeout_s=0.3)
    Baselines(root, options=options).writer(Author()).lock(faults.make_samples(1, [0]))
    disk = faults.FaultyDisk()
    Baselines(root, disk=disk).writer(Author()).refresh(faults.make_samples(2, [0]))
    at = len(disk.steps) - disk.steps[::-1].index("link")
    assert zygote.run(store=root, kind="strict", seed=3, keys=[0], at=at, do="kill")["ending"] == "killed"
    with pytest.raises(LockError, match=r"held by pid \d+ on .*baseline unlock --break") as caught:
        Baselines(root, options=options).writer(Author()).refresh(faults.make_samples(4, [0]))
    assert caught.value.exit_code == 4
    [view] = [view for view in list_locks(root / "locks") if view.claims]
    held = next(claim for claim in view.claims if claim.state == "held")
    generation = Baselines(root).state().generation
    break_claim(view.path, held.name)
    Baselines(root).writer(Author(reason="its machine is gone")).fence()
    assert Baselines(root).state().generation == generation + 1
    Baselines(root, options=options).writer(Author()).refresh(faults.make_samples(4, [0]))
