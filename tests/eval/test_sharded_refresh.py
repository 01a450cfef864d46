"""However a refresh is cut into shards, in whatever order they run and die, the store holds the same."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.baselines.committing import Author
from deepinfer.baselines.fsck import check_store
from deepinfer.baselines.store import Baselines
from deepinfer.baselines.summary import canonical_digest, summarise
from deepinfer.eval.scoring_plan import ScoringPlan, plan_samples
from deepinfer.verify.baseline_run import Shard, refresh_samples, shard_from_environment

NUM_TEXTS = 23


@pytest.fixture
def texts(write_texts: Callable[..., Path]) -> Path:
    return write_texts(*(f"text number {index}, " * (1 + index % 4) for index in range(NUM_TEXTS)))


def refresh(root: Path, scorer: Any, texts: Path, shard: Shard) -> None:
    planned = plan_samples(scorer, (ScoringPlan(workload=str(texts)),))
    refresh_samples(scorer, Baselines(root), planned, Author(reason="test"), shard, group_rows=16)


def facts(root: Path) -> tuple[str, int]:
    """Canonical digest of what waits, and how many keys; the store is sound."""
    assert check_store(Baselines(root)).problems == []
    state = Baselines(root).state()
    return canonical_digest(state.pending), sum(row.num_pending for row in summarise(state))


@pytest.mark.parametrize("count", [2, 7])
def test_shards_in_any_order_give_the_same_store(
    tmp_path: Path, make_scorer: Callable[..., Any], texts: Path, count: int
) -> None:
    refresh(tmp_path / "whole", make_scorer(), texts, Shard())
    order = list(range(1, count + 1))
    random.Random(count).shuffle(order)
    for index in order:
        refresh(tmp_path / "parts", make_scorer(), texts, Shard(index=index, count=count, run="test"))
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")
    assert facts(tmp_path / "parts")[1] == NUM_TEXTS
    perplexities = []
    for name in ("whole", "parts"):
        store = Baselines(tmp_path / name)
        keys = [
            key for _, changes in store.history() for key in (c.key for c in changes if c.kind == "pending")
        ]
        store.writer(Author(reason="test")).accept(keys)
        perplexities.append([row.perplexity for row in summarise(store.state())])
    assert perplexities[0] == perplexities[1], "not a bit of the perplexity depends on the shards"


def test_a_killed_shard_goes_on_where_it_was(
    tmp_path: Path, make_scorer: Callable[..., Any], mini_dir: Path, texts: Path
) -> None:
    refresh(tmp_path / "whole", make_scorer(), texts, Shard())
    root = tmp_path / "parts"

    def node(index: int, *step: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(Path(__file__).parent / "shard_worker.py")]
        arguments = [str(root), str(texts), str(mini_dir), str(index), "2", *step]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    assert node(1).returncode == 0
    assert node(2, "150").returncode == -9
    after_kill = facts(root)[1]
    assert (NUM_TEXTS + 1) // 2 < after_kill < NUM_TEXTS, "it died half way"
    again = node(2)
    assert again.returncode == 0, again.stderr
    num_settled, num_scored = map(int, again.stdout.split())
    assert num_settled == after_kill - (NUM_TEXTS + 1) // 2
    assert num_scored == NUM_TEXTS - after_kill, "what was settled is not scored again"
    assert facts(root) == facts(tmp_path / "whole")
    written = [change.key for _, changes in Baselines(root).history() for change in changes]
    assert len(written) == len(set(written)) == NUM_TEXTS, "every key once"


def test_a_shard_that_runs_twice_writes_once(
    tmp_path: Path, make_scorer: Callable[..., Any], texts: Path
) -> None:
    for _ in range(2):
        refresh(tmp_path / "store", make_scorer(), texts, Shard(index=1, count=2))
    changes = [change for _, found in Baselines(tmp_path / "store").history() for change in found]
    assert len(changes) == (NUM_TEXTS + 1) // 2


@pytest.mark.parametrize(
    ("environment", "shard"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}, Shard(index=3, count=4)),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "31"}, Shard(index=8, count=8, run="31")),
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "SLURM_ARRAY_TASK_ID": "11",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_JOB_ID": "32",
            },
            Shard(index=2, count=3, run="32"),
        ),
        (
            {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "5", "JOB_NAME": "night"},
            Shard(index=1, count=5, run="night"),
        ),
    ],
)
def test_a_launcher_assigns_the_shard(environment: dict[str, str], shard: Shard | None) -> None:
    assert shard_from_environment(environment) == shard
