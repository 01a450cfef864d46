"""A real process, a real SIGKILL: what it had stored stays, what it had not is scored once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.eval.evaluate import EvalConfig, evaluate
from deepinfer.eval.stored_run import read_run

WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fake_scorer import FakeScorer
from deepinfer.eval import records
from deepinfer.eval.evaluate import EvalConfig, evaluate
records.RunWriter.__init__.__defaults__ = (60,)  # rows of a shard: several shards a run
scorer = FakeScorer(model_dir=Path(sys.argv[2]), delay_s=0.05)
evaluate(scorer, EvalConfig(workloads=(sys.argv[3],), policies=("strided:16:8",), out=Path(sys.argv[4])))
"""

TEXTS = [f"Document number {index} says: " + "lorem ipsum dolor " * (3 + index % 4) for index in range(12)]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the worker must still be at work when it is killed"
        assert time.monotonic() < deadline, "the worker must get that far"
        time.sleep(0.005)


@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_a_killed_run_is_finished_without_double_or_lost_rows(
    tmp_path: Path,
    write_texts: Callable[..., Path],
    make_scorer: Callable[..., Any],
    mini_dir: Path,
    num_shards: int,
) -> None:
    workload, run = write_texts(*TEXTS), tmp_path / "run"
    arguments = [str(Path(__file__).parent), str(mini_dir), str(workload), str(run)]
    with subprocess.Popen([sys.executable, "-P", "-c", WORKER, *arguments]) as process:
        wait_for(
            lambda: (run / "run.json").exists() and len(list(run.glob("shard-*"))) >= num_shards, process
        )
        os.kill(process.pid, signal.SIGKILL)
    assert not (run / "manifest.json").exists()
    stored = len(list(run.glob("shard-*")))
    assert stored >= num_shards

    def config(out: Path) -> EvalConfig:
        return EvalConfig(workloads=(str(workload),), policies=("strided:16:8",), out=out)

    scorer = make_scorer()
    resumed = evaluate(scorer, config(run))
    fresh = evaluate(make_scorer(), config(tmp_path / "fresh"))
    assert (
        read_run(run).manifest["canonical_digest"]
        == read_run(tmp_path / "fresh").manifest["canonical_digest"]
    )
    assert resumed.to_dict() == fresh.to_dict()
    rescored = {request.request_id.split("#")[0] for request in scorer.seen}
    assert (len(rescored) < len(TEXTS)) == bool(stored), "stored samples are not scored again"
