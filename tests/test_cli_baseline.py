"""``deepinfer baseline`` from the outside, on the bundled model and a few of its texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from deepinfer.baselines.canonical import Sample
from deepinfer.baselines.committing import Author
from deepinfer.baselines.state import entries
from deepinfer.baselines.store import Baselines
from deepinfer.cli import main

TEXTS = ["--texts", "unicode", "--max-tokens", "16", "--sample", "unicode-0[0-2]"]
ENVIRONMENT = {"CI": "", "DEEPINFER_STORE": None, "GITHUB_STEP_SUMMARY": None}


def run(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(main, ["baseline", *map(str, arguments)], env={**ENVIRONMENT, **environment})


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three samples of the bundled model, locked."""
    root = tmp_path_factory.mktemp("baselines") / "store"
    result = run("lock", "--store", root, *TEXTS, "--reason", "first")
    assert result.exit_code == 0, result.output
    assert "3 keys scored, 3 lock" in result.stdout
    return root


@pytest.fixture
def store(locked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(locked, tmp_path / "store"))


def move(store: Path, change: Callable[[int], float]) -> None:
    """Put other log-probabilities up for review, as another version of the engine would."""
    baselines = Baselines(store)
    state = baselines.state()
    moved = []
    for index, (key, entry) in enumerate(entries(state.locked)):
        sample = baselines.sample(key, entry)
        values = sample.logprobs.copy()
        values[3:] += np.float32(change(index))
        moved.append((key, Sample(token_ids=sample.token_ids, logprobs=values)))
    provenance = {**state.revisions[0].note.provenance, "torch": "9.9"}
    baselines.writer(Author(reason="another torch", provenance=provenance)).refresh(moved)


def test_what_was_locked_is_the_same_again(store: Path) -> None:
    result = run("check", "--store", store, *TEXTS)
    assert result.exit_code == 0, result.output
    assert "verdict: same (3 same" in result.stdout.splitlines()[-1]
    assert not (store / "locks").joinpath("commit.kernel.holder").exists()


def test_one_bit_is_red_for_people_and_machines(store: Path, tmp_path: Path) -> None:
    move(store, lambda index: 1e-6 if index == 1 else 0.0)
    assert run("accept", "--store", store, "unicode-01", "--reason", "wrongly").exit_code == 0
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    options = ["--junit", str(junit), "--summary", str(summary), "--github"]
    result = run("check", "--store", store, *TEXTS, *options)
    assert result.exit_code == 1
    assert "different" in result.stdout
    assert "torch 9.9 ->" in result.stdout
    assert result.stdout.count("::error") == 2
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert [case.get("name") for case in suite.iter("testcase")] == ["unicode-00", "unicode-01", "unicode-02"]
    assert "**different**" in summary.read_text(encoding="utf-8")
    record = json.loads(run("check", "--store", store, *TEXTS, "--json").stdout)
    assert (record["exit_code"], record["counts"]) == (1, {"same": 2, "different": 1})
    first = next(key for key in record["keys"] if key["status"] == "different")["first_difference"]
    assert first["position"] == 3


def test_missing_and_orphaned_keys_are_three(store: Path) -> None:
    more = [*TEXTS[:-1], "unicode-0[0-3]"]
    assert "1 missing" in run("check", "--store", store, *more).stdout
    assert run("check", "--store", store, *more).exit_code == 3
    baselines = Baselines(store)
    key, entry = next(entries(baselines.state().locked))
    gone = type(key)(key.scope, "unicode-00-of-yesterday")
    baselines.writer(Author()).lock([(gone, baselines.sample(key, entry))])
    result = run("check", "--store", store, *TEXTS[:-1], "unicode-0*")
    assert result.exit_code == 3
    assert "orphan" in result.stdout


def test_review_without_a_terminal(store: Path, tmp_path: Path) -> None:
    move(store, lambda index: -0.01 * (index + 1))
    page = tmp_path / "diff.html"
    result = run("diff", "--store", store, "--html", page)
    assert result.exit_code == 1
    assert "moved: torch" in result.stdout
    assert page.read_text(encoding="utf-8").count("<svg") == 3
    record = json.loads(run("diff", "--store", store, "--json").stdout)
    assert record["scopes"][0]["delta_nats_per_token"] > 0
    assert run("accept", "--store", store, "--reason", "x").exit_code == 2, "keys or --all"
    assert run("accept", "--store", store, "--all").exit_code == 2, "a reason"
    assert run("accept", "--store", store, "nothing-like-it", "--reason", "x").exit_code == 2
    assert run("accept", "--store", store, "unicode-00", "--reason", "looked at it").exit_code == 0
    assert run("reject", "--store", store, "--all").exit_code == 0
    assert run("diff", "--store", store).exit_code == 0
    history = run("history", "--store", store, "unicode-00").stdout
    assert [line.split()[2] for line in history.splitlines() if "@" in line] == ["lock", "refresh", "accept"]
    assert "looked at it" in history


def test_a_refresh_that_moves_nothing_is_green(store: Path) -> None:
    result = run("refresh", "--store", store, *TEXTS, "--shard", "1/2")
    assert result.exit_code == 0, result.output
    assert "shard 1 of 2: 2 keys scored" in result.stdout
    assert run("refresh", "--store", store, *TEXTS, "--shard", "3/2").exit_code == 2


@pytest.mark.parametrize("verb", ["lock", "refresh", "accept", "reject", "prune", "upgrade"])
def test_ci_never_writes(store: Path, verb: str) -> None:
    before = sorted(path.name for path in (store / "ledger").iterdir())
    result = run(verb, "--store", store, *(["--all", "--reason", "x"] if verb == "accept" else []), CI="true")
    assert result.exit_code == 2
    assert "never writes a baseline" in result.stderr
    assert sorted(path.name for path in (store / "ledger").iterdir()) == before


def test_care_of_a_store(store: Path) -> None:
    assert run("fsck", "--store", store).exit_code == 0
    # one, unless the machine is so slow that locking wrote what it had by then
    written = [path for path in (store / "blobs").rglob("*") if path.is_file()]
    assert json.loads(run("size", "--store", store, "--json").stdout)["num_blobs"] == len(written) >= 1
    status = json.loads(run("status", "--store", store, "--keys", "--json").stdout)
    assert (status["scopes"][0]["num_locked"], len(status["keys"])) == (3, 3)
    assert run("prune", "--store", store, "--sample", "unicode-02").exit_code == 2, "a reason"
    assert "1 keys ended" in run("prune", "--store", store, "--sample", "unicode-02", "--reason", "x").stdout
    assert "kernel locks" in run("unlock", "--store", store).stdout
    line = store / "ledger" / "000000000001.jsonl"
    line.write_bytes(line.read_bytes().replace(b"lock", b"luck"))
    result = run("fsck", "--store", store)
    assert result.exit_code == 3
    assert "line 1" in result.stdout


def test_the_bundled_store_is_read_by_default_and_sound() -> None:
    assert "sound: 2 revisions" in run("fsck", "--dry-run").stdout
    assert {"portable/strict/mini", "cuda-sm90-h200/fast/mini"} <= {
        line.partition("~")[0] for line in run("status").stdout.splitlines()
    }


@pytest.fixture(autouse=True)
def away_from_any_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate of the checkout must not reach these tests."""
    (tmp_path / ".git").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "verb",
    "check lock refresh status diff accept reject history fsck prune size unlock upgrade".split(),
)
def test_every_help_ends_with_an_example_and_offers_json(verb: str) -> None:
    result = run(verb, "--help")
    assert "--json" in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].strip().startswith("deepinfer baseline")
