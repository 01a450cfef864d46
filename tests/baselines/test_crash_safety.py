"""Whatever ends, pauses or starves a writer at any of its steps, the store stays whole."""

from __future__ import annotations

import errno
import fcntl
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.baselines.committing import Author
from deepinfer.baselines.errors import BaselineError, LockError
from deepinfer.baselines.locks import LockKind
from deepinfer.baselines.store import Baselines, LockOptions

Sound = Callable[[Path], None]


@pytest.fixture
def store_dir(quick_dir: Path, faults: Any) -> Path:
    """A store with four keys locked, two of them with something else waiting."""
    root = quick_dir / "store"
    writer = Baselines(root).writer(Author(reason="first"))
    writer.lock(faults.make_samples(1, range(4)))
    writer.refresh(faults.make_samples(2, range(2)))
    return root


def tables(root: Path, faults: Any) -> tuple[dict[str, str], dict[str, str]]:
    state = Baselines(root).state()
    return faults.digests(state.locked), faults.digests(state.pending)


def steps_of(root: Path, faults: Any, action: str, keys: list[int]) -> list[str]:
    """The steps of an action that nothing disturbs, taken on a copy."""
    copy = root.with_name("counted")
    shutil.copytree(root, copy)
    disk = faults.FaultyDisk()
    writer = Baselines(copy, disk=disk).writer(Author())
    if action == "refresh":
        writer.refresh(faults.make_samples(3, keys))
    else:
        getattr(writer, action)([faults.make_key(index) for index in keys])
    shutil.rmtree(copy)
    return disk.steps


@pytest.mark.parametrize("action", ["refresh", "accept"])
def test_a_writer_killed_at_any_step_leaves_the_old_state_or_the_new(
    store_dir: Path, zygote: Any, faults: Any, sound: Sound, action: str
) -> None:
    keys = [0, 1]
    before = tables(store_dir, faults)
    steps = steps_of(store_dir, faults, action, keys)
    assert {"create", "write", "sync", "link", "lock", "rename", "sync_folder"} <= set(steps)
    new_pending = {str(key): sample.digest() for key, sample in faults.make_samples(3, keys)}
    moved = {str(faults.make_key(index)) for index in keys}
    seen = set()
    for at in range(1, len(steps) + 1):
        root = store_dir.with_name(f"killed-{at}")
        shutil.copytree(store_dir, root)
        assert (
            zygote.run(store=root, action=action, seed=3, keys=keys, at=at, do="kill")["ending"] == "killed"
        )
        sound(root)
        after = tables(root, faults)
        if action == "refresh":
            assert after in [before, (before[0], {**before[1], **new_pending})]
        else:
            accepted = {**before[0], **{key: before[1][key] for key in moved}}
            assert after in [before, (accepted, {k: v for k, v in before[1].items() if k not in moved})]
        seen.add(after == before)
        assert zygote.run(store=root, seed=4, keys=keys)["ending"] == "exit 0"  # no lock is left behind
        shutil.rmtree(root)
    assert seen == {True, False}, "some steps come before the revision appears and some after"


def failure_of(store: Baselines, faults: Any) -> BaselineError | None:
    try:
        store.writer(Author()).refresh(faults.make_samples(3, [0, 3]))
    except BaselineError as failure:
        return failure
    return None


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS", "ENOLCK", "ESTALE"])
def test_a_system_that_fails_at_any_step_is_one_line_and_no_damage(
    store_dir: Path, faults: Any, sound: Sound, error: str
) -> None:
    before = tables(store_dir, faults)
    num_steps = len(steps_of(store_dir, faults, "refresh", [0, 3]))
    failed = 0
    for at in range(1, num_steps + 1):
        root = store_dir.with_name(f"starved-{at}")
        shutil.copytree(store_dir, root)
        disk = faults.FaultyDisk(at, error)
        failure = failure_of(Baselines(root, disk=disk), faults)
        if failure is not None:
            failed += 1
            assert "\n" not in str(failure)
            assert failure.exit_code == (4 if disk.steps[-1] == "lock" else 2), str(failure)
        sound(root)
        locked, _ = tables(root, faults)
        assert locked == before[0]
        Baselines(root).writer(Author()).refresh(faults.make_samples(4, [0, 3]))
        assert tables(root, faults)[1].keys() >= {str(faults.make_key(0)), str(faults.make_key(3))}
        shutil.rmtree(root)
    assert failed > num_steps // 2


def test_a_kernel_without_locks_is_a_lock_error(
    store_dir: Path, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    before = tables(store_dir, faults)
    with pytest.raises(LockError, match="doctor --lock-dir"):
        Baselines(store_dir).writer(Author()).refresh(faults.make_samples(3, [0]))
    assert tables(store_dir, faults) == before


def test_a_paused_holder_of_a_kernel_lock_keeps_others_out(
    store_dir: Path, zygote: Any, faults: Any, sound: Sound
) -> None:
    steps = steps_of(store_dir, faults, "refresh", [0])
    at = len(steps) - steps[::-1].index("link")  # the revision's link: the lock is held
    paused = zygote.run(store=store_dir, seed=3, keys=[0], at=at, do="stop")
    assert paused["ending"] == "stopped"
    options = LockOptions(timeout_s=0.2)
    with pytest.raises(LockError, match=rf"held by pid {paused['pid']} on .* for \d+ s"):
        Baselines(store_dir, options=options).writer(Author()).refresh(faults.make_samples(5, [1]))
    assert zygote.resume(paused["pid"])["ending"] == "exit 0"
    sound(store_dir)


def takeover(root: Path, zygote: Any, faults: Any, sound: Sound, at: int) -> str:
    """Pause a writer at a step, let another take over and publish, let the first go on; how it ended."""
    settings = {"store": root, "kind": "generation", "stale_s": 0.3}
    paused = zygote.run(**settings, seed=3, keys=[0], at=at, do="stop", reason="paused")
    assert paused["ending"] == "stopped"
    assert zygote.run(**settings, seed=5, keys=[1], reason="taker")["ending"] == "exit 0"
    ending: str = zygote.resume(paused["pid"])["ending"]
    sound(root)
    generations = [info.generation for info in Baselines(root).state().revisions]
    assert generations == sorted(generations)
    return ending


def generation_store(quick_dir: Path, faults: Any) -> Path:
    root = quick_dir / "generations"
    options = LockOptions(kind=LockKind.GENERATION)
    Baselines(root, options=options).writer(Author()).lock(faults.make_samples(1, range(4)))
    return root


def generation_steps(root: Path, faults: Any) -> list[str]:
    disk = faults.FaultyDisk()
    copy = root.with_name("counted")
    shutil.copytree(root, copy)
    Baselines(copy, disk=disk).writer(Author()).refresh(faults.make_samples(3, [0]))
    shutil.rmtree(copy)
    return disk.steps


def test_a_paused_writer_never_publishes_after_a_takeover(
    quick_dir: Path, zygote: Any, faults: Any, sound: Sound
) -> None:
    root = generation_store(quick_dir, faults)
    steps = generation_steps(root, faults)
    link = len(steps) - steps[::-1].index("link")
    assert takeover(root, zygote, faults, sound, link) == "exit 4"
    state = Baselines(root).state()
    assert state.pending_entry(faults.make_key(0)) is None
    assert state.pending_entry(faults.make_key(1)) is not None


@pytest.mark.slow
def test_a_writer_paused_at_any_step_never_publishes_with_an_old_generation(
    quick_dir: Path, zygote: Any, faults: Any, sound: Sound
) -> None:
    root = generation_store(quick_dir, faults)
    steps = generation_steps(root, faults)
    endings = []
    for at in range(1, len(steps) + 1):
        copy = root.with_name(f"paused-{at}")
        shutil.copytree(root, copy)
        endings.append(takeover(copy, zygote, faults, sound, at))
        waiting = Baselines(copy).state().pending_entry(faults.make_key(0))
        assert (waiting is not None) == (endings[-1] == "exit 0"), at
        shutil.rmtree(copy)
    assert set(endings) == {"exit 0", "exit 4"}  # before the lock and after the link there is nothing to lose


def random_accidents(store_dir: Path, zygote: Any, faults: Any, sound: Sound, seeds: range) -> None:
    """One store that meets accident after accident; what was accepted must survive all of them."""
    for seed in seeds:
        draw = random.Random(seed)
        before = tables(store_dir, faults)
        action = draw.choice(["refresh", "refresh", "accept", "reject"])
        keys = draw.sample(range(4), draw.randint(1, 3))
        if action != "refresh":
            keys = [index for index in keys if str(faults.make_key(index)) in before[1]]
        do = draw.choice(["kill", "kill", *faults.ERRORS])
        ended = zygote.run(
            store=store_dir, action=action, seed=seed, keys=keys, at=draw.randint(1, 45), do=do
        )
        assert ended["ending"] in {"killed", "exit 0", "exit 2", "exit 4"}
        sound(store_dir)
        locked, _ = tables(store_dir, faults)
        if action == "accept":
            assert all(locked[key] in (value, before[1].get(key)) for key, value in before[0].items()), seed
        else:
            assert locked == before[0], seed


def test_fifty_random_accidents(store_dir: Path, zygote: Any, faults: Any, sound: Sound) -> None:
    random_accidents(store_dir, zygote, faults, sound, range(50))


@pytest.mark.slow
def test_a_thousand_random_accidents(quick_dir: Path, zygote: Any, faults: Any, sound: Sound) -> None:
    for part in range(20):
        root = quick_dir / f"store-{part}"
        writer = Baselines(root).writer(Author(reason="first"))
        writer.lock(faults.make_samples(1, range(4)))
        random_accidents(root, zygote, faults, sound, range(1000 + 50 * part, 1050 + 50 * part))
