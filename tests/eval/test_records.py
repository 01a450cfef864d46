from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from filelock import FileLock

from deepinfer.engine.errors import RunError
from deepinfer.eval.records import RunBusyError, RunHeader, RunWriter
from deepinfer.eval.rows import SampleRows, blank_rows
from deepinfer.eval.shard_file import SampleOutcome
from deepinfer.eval.stored_run import read_run

NAMES = [f"s{index}" for index in range(7)]


def header(**configuration: Any) -> RunHeader:
    return RunHeader(
        kind="score",
        configuration={"checkpoint": "c", "policies": ["document"]} | configuration,
        samples=tuple({"sample_id": name, "workload": None, "num_ids": 6} for name in NAMES),
    )


def outcome(name: str) -> SampleOutcome:
    if name == "s3":
        return SampleOutcome(sample_id=name, failure="too long")
    rows: SampleRows = blank_rows(name, "document", np.arange(6, dtype=np.int32) + int(name[1:]), num_top=0)
    rows.logprob[1:] = -np.arange(1, 6, dtype=np.float32) / (int(name[1:]) + 1)
    rows.valid[1:] = True
    return SampleOutcome(sample_id=name, rows=(rows,))


def write(path: Path, names: list[str], shard_rows: int = 12, finish: bool = True) -> None:
    """Score what is missing of ``names``, in that order."""
    with RunWriter(path, header(), shard_rows=shard_rows) as writer:
        for name in names:
            if name not in writer.outcomes:
                writer.add(outcome(name))
        if finish and not writer.is_complete:
            writer.finish({"answer": 42})


def content(path: Path) -> tuple[str, list[tuple[str, str | None]]]:
    run = read_run(path)
    total_rows = sum(shard["rows"] for shard in run.manifest["shards"])
    assert total_rows == 6 * 6, "no row is lost and none is there twice"
    return run.manifest["canonical_digest"], [(o.sample_id, o.failure) for o in run.outcomes.values()]


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "run", NAMES)
    run = read_run(tmp_path / "run")
    assert list(run.outcomes) == NAMES
    assert run.rows("s2", "document").digest == outcome("s2").rows[0].digest
    assert run.outcomes["s3"].failure == "too long"
    assert run.manifest["result"] == {"answer": 42}
    entry = run.manifest["samples"][3]
    assert (entry["sample_id"], entry["status"], entry["reason"]) == ("s3", "failed", "too long")


@pytest.mark.parametrize("shard_rows", [1, 12, 1000])
@pytest.mark.parametrize(
    "order", [NAMES, NAMES[::-1], NAMES[3:] + NAMES[:3]], ids=["given", "back", "rotated"]
)
def test_order_shards_and_interruptions_do_not_move_the_content(
    tmp_path: Path, order: list[str], shard_rows: int
) -> None:
    write(tmp_path / "plain", NAMES)
    for stop in (0, 2, 5, 7):  # four sessions, each a little further
        write(tmp_path / "pieces", order[:stop], shard_rows, finish=stop == 7)
    assert content(tmp_path / "pieces") == content(tmp_path / "plain")


class Crash(BaseException):
    """What a kill looks like from inside: nothing may catch it."""


def test_a_crash_at_any_step_of_any_file_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash at the first, second, ... system call that writes, until one run gets through without a crash."""
    write(tmp_path / "plain", NAMES)
    expected = content(tmp_path / "plain")
    crashes = 0
    while True:
        path = tmp_path / f"run-{crashes}"
        calls = 0

        def crash_at(real: Callable[..., Any], before: bool, last: int = crashes) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if before and calls > last:
                    raise Crash
                answer = real(*arguments, **options)
                if calls > last:
                    raise Crash
                return answer

            return call

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", crash_at(os.fsync, before=crashes % 2 == 0))
            patch.setattr(os, "replace", crash_at(os.replace, before=crashes % 2 == 0))
            try:
                write(path, NAMES)
            except Crash:
                crashes += 1
            else:
                break
        if (path / "manifest.json").exists():
            assert content(path) == expected, "a manifest means complete"
        else:
            with pytest.raises(RunError):
                read_run(path)
        write(path, NAMES)
        assert content(path) == expected
        assert not list(path.glob(".partial-*"))
    assert crashes == 3 * 5, "question, three shards and manifest: sync, rename, sync of the folder"


def test_a_run_without_manifest_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "run", NAMES[:4], finish=False)
    with pytest.raises(
        RunError, match=r"the run is not complete \(no manifest.json\); run its command again"
    ):
        read_run(tmp_path / "run")
    with pytest.raises(RunError, match="is not a run folder"):
        read_run(tmp_path)


def test_a_run_that_lacks_samples_cannot_be_finished(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="1 samples are not scored, first 's6'"):
        write(tmp_path / "run", NAMES[:6])
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_run_of_another_model_is_not_continued(tmp_path: Path) -> None:
    write(tmp_path / "run", NAMES[:4], finish=False)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with (
        pytest.raises(
            RunError, match=r"holds a run of another configuration \(checkpoint: 'c' there, 'd' now\)"
        ),
        RunWriter(tmp_path / "run", header(checkpoint="d")),
    ):
        pass
    other = RunHeader(kind="score", configuration=header().configuration, samples=header().samples[:3])
    with pytest.raises(RunError, match="holds a run of other samples"), RunWriter(tmp_path / "run", other):
        pass
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_a_shard_of_another_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", NAMES[:4], finish=False)
    with RunWriter(tmp_path / "other", header(checkpoint="d")) as writer:
        writer.add(outcome("s6"))
    (stranger,) = (tmp_path / "other").glob("shard-*")
    stranger.rename(tmp_path / "run" / stranger.name)
    with pytest.raises(RunError, match=r"shard-.*: belongs to another run"):
        write(tmp_path / "run", NAMES)


def test_a_folder_of_other_files_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"is not a run folder \(it holds 'thesis.txt'\)"):
        write(tmp_path, NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "run", NAMES[:2], finish=False)
    holder = (
        "import sys; from filelock import FileLock\n"
        "lock = FileLock(sys.argv[1], fallback_to_soft=False); lock.acquire()\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    lock = str(tmp_path / "run" / ".lock")
    with subprocess.Popen(
        [sys.executable, "-c", holder, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RunBusyError, match="another process writes this run"):
            write(tmp_path / "run", NAMES)
        process.kill()
    assert RunBusyError.exit_code == 4
    write(tmp_path / "run", NAMES)  # a killed holder leaves nothing locked
    content(tmp_path / "run")


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    def die_after_one_sample() -> None:
        with RunWriter(tmp_path / "run", header()) as writer:
            writer.add(outcome("s0"))
            raise RuntimeError("engine died")

    with pytest.raises(RuntimeError, match="engine died"):
        die_after_one_sample()
    FileLock(tmp_path / "run" / ".lock", timeout=0, fallback_to_soft=False).acquire().lock.release()
    with RunWriter(tmp_path / "run", header()) as writer:
        assert list(writer.outcomes) == ["s0"], "what was finished before the error is kept"


def test_a_damaged_shard_is_named_on_resuming_and_on_reading(tmp_path: Path) -> None:
    write(tmp_path / "run", NAMES)
    shard = sorted((tmp_path / "run").glob("shard-*"))[1]
    shard.write_bytes(shard.read_bytes()[:-20])
    for use in (lambda: write(tmp_path / "run", NAMES), lambda: read_run(tmp_path / "run")):
        with pytest.raises(RunError, match=rf"{shard.name}: damaged"):
            use()


def test_following_the_advice_about_a_damaged_shard_repairs_the_run(tmp_path: Path) -> None:
    for name in ("run", "plain"):
        write(tmp_path / name, NAMES)
    min((tmp_path / "run").glob("shard-*")).unlink()
    (tmp_path / "run" / "manifest.json").unlink()
    write(tmp_path / "run", NAMES)
    assert content(tmp_path / "run") == content(tmp_path / "plain")


def test_a_lost_or_added_shard_and_a_changed_manifest_are_found(tmp_path: Path) -> None:
    for name in ("lost", "added", "changed"):
        write(tmp_path / name, NAMES)
    min((tmp_path / "lost").glob("shard-*")).unlink()
    with pytest.raises(RunError, match=r"shard-00000-.*: cannot be read"):
        read_run(tmp_path / "lost")
    with pytest.raises(RunError, match="the shards are not those of the manifest"):
        write(tmp_path / "lost", NAMES)
    (tmp_path / "added" / "shard-00009-0.parquet").write_bytes(b"")
    with pytest.raises(RunError, match=r"shard-00009-0.parquet: is not in the manifest"):
        read_run(tmp_path / "added")
    manifest = tmp_path / "changed" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"answer": 42', '"answer": 43'))
    with pytest.raises(RunError, match=r"manifest.json: changed since it was written"):
        read_run(tmp_path / "changed")
    manifest.write_text("{")
    with pytest.raises(RunError, match=r"manifest.json: is not JSON"):
        read_run(tmp_path / "changed")


def test_a_sample_in_two_shards_is_refused(tmp_path: Path) -> None:
    for name in ("run", "twin"):
        write(tmp_path / name, NAMES[:2] if name == "run" else NAMES[1:3], finish=False)
    (shard,) = (tmp_path / "twin").glob("shard-*")
    shard.rename(tmp_path / "run" / shard.name)
    with pytest.raises(RunError, match="sample 's1' is in another shard too"):
        write(tmp_path / "run", NAMES)


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")],
    ids=["full disk", "read-only"],
)
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    write(tmp_path / "run", NAMES[:2], finish=False)

    def fail(*_: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(RunError, match=rf"cannot write there \({message}\)") as caught:
            write(tmp_path / "run", NAMES)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "run").glob(".partial-*"))
    write(tmp_path / "run", NAMES)
    content(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/run: cannot write there \(Not a directory\)"):
        write(tmp_path / "file" / "run", NAMES)


def test_a_manifest_names_what_the_run_was_made_with(tmp_path: Path) -> None:
    write(tmp_path / "run", NAMES)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    (environment,) = manifest["environments"]
    assert set(environment["packages"]) >= {"deepinfer", "torch", "numpy", "pyarrow"}
    assert "environments" not in manifest["configuration"], "provenance is no part of the question"
