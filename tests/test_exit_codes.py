"""Every exit code of product.md section 5, through the real command, engine and store."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from deepinfer.baselines.canonical import Sample
from deepinfer.baselines.committing import Author
from deepinfer.baselines.state import entries
from deepinfer.baselines.store import Baselines
from deepinfer.cli import main

ENVIRONMENT = {"CI": "", "DEEPINFER_STORE": None, "GITHUB_STEP_SUMMARY": None}
VERIFY = ("verify", "--check", "baselines", "--json")
HOLDER = """
import sys, time
from pathlib import Path
from deepinfer.baselines.committing import Author
from deepinfer.baselines.store import Baselines
author = Author(reason="hold", provenance={})
with Baselines(Path(sys.argv[1])).writer(author).working("refresh-1-of-1"):
    print("held", flush=True)
    time.sleep(600)
"""


def deepinfer(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env=ENVIRONMENT)


def code_and_verdict(result: Result) -> tuple[int, str]:
    record = json.loads(result.stdout)
    assert record["exit_code"] == result.exit_code
    return result.exit_code, record["verdict"]


@pytest.fixture(scope="module")
def locked_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that gates on a few tokens of one text, with its baselines locked by the command."""
    project = tmp_path_factory.mktemp("project")
    (project / "deepinfer.toml").write_text(
        'store = "store"\nworkloads = [{workload = "unicode", max_tokens = 12}]\n', encoding="utf-8"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        assert deepinfer("baseline", "lock", "--reason", "first").exit_code == 0
    return project


@pytest.fixture
def project(locked_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as working directory."""
    copy = Path(shutil.copytree(locked_project, tmp_path / "project"))
    monkeypatch.chdir(copy)
    return copy


def test_0_what_was_locked_is_the_same(project: Path) -> None:
    assert code_and_verdict(deepinfer(*VERIFY)) == (0, "same")


def test_1_one_bit_of_one_value_is_different(project: Path) -> None:
    store = Baselines(project / "store")
    state = store.state()
    key, entry = next(iter(entries(state.locked)))
    sample = store.sample(key, entry)
    values = sample.logprobs.copy()
    values.view(np.uint32)[-1] ^= 1
    author = Author(reason="one bit", provenance=state.revisions[0].note.provenance)
    store.writer(author).refresh([(key, Sample(token_ids=sample.token_ids, logprobs=values))])
    assert deepinfer("baseline", "accept", "--all", "--reason", "one bit").exit_code == 0
    assert code_and_verdict(deepinfer(*VERIFY)) == (1, "different")


def test_2_an_unknown_check_is_usage(project: Path) -> None:
    assert deepinfer("verify", "--check", "no-such-check").exit_code == 2


def test_3_a_text_that_nobody_locked_is_unlocked(project: Path) -> None:
    path = project / "deepinfer.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("12", "13"), encoding="utf-8")
    assert code_and_verdict(deepinfer(*VERIFY)) == (3, "unlocked")


def published(project: Path) -> dict[str, bytes]:
    """Everything in the store but its lock files."""
    files = [path for path in (project / "store").rglob("*") if path.is_file() and "locks" not in path.parts]
    return {str(path): path.read_bytes() for path in files}


def test_4_a_store_that_another_process_holds_is_a_lock(project: Path) -> None:
    before = published(project)
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, "store"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        started_s = time.perf_counter()
        result = deepinfer("baseline", "refresh", "--reason", "x", "--lock-timeout", "0.3")
        assert time.perf_counter() - started_s < 60
    finally:
        holder.kill()
        holder.communicate()
    assert result.exit_code == 4, result.output
    assert published(project) == before
    assert deepinfer(*VERIFY).exit_code == 0


def test_5_a_model_that_answers_with_nan_is_inconclusive(project: Path, mini_dir: Path) -> None:
    model = Path(shutil.copytree(mini_dir, project / "model"))
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    first, last = json.loads(data[8 : 8 + size])["norm.weight"]["data_offsets"]
    data[8 + size + first : 8 + size + last] = b"\xff" * (last - first)
    weights.write_bytes(data)
    result = deepinfer("verify", "--check", "rerun", "--model", str(model), "--json")
    assert code_and_verdict(result) == (5, "inconclusive")
