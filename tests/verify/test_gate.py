"""What a project gates on, and which store a command works on."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.engine.errors import ConfigError
from deepinfer.eval.scoring_plan import BUNDLED_PLANS, ScoringPlan
from deepinfer.verify.gate import (
    baseline_gate,
    bundled_store_dir,
    choose_store,
    choose_store_to_write,
    load_gate,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "down").mkdir(parents=True)
    return tmp_path


def test_without_a_file_the_bundled_store_is_read_and_never_written(project: Path) -> None:
    gate = load_gate(project / "deep")
    choice = choose_store(None, gate)
    assert (choice.path, choice.is_named, choice.is_bundled) == (bundled_store_dir(), False, True)
    assert choose_store_to_write(None, gate) == project / "baselines.lock"
    assert gate.plans == BUNDLED_PLANS
    assert not baseline_gate(None, gate, is_ci=False).is_required
    assert baseline_gate(None, gate, is_ci=True).is_required


def test_a_store_of_the_project_is_found_from_below(project: Path) -> None:
    (project / "baselines.lock").mkdir()
    choice = choose_store(None, load_gate(project / "deep" / "down"))
    assert (choice.path, choice.is_named) == (project / "baselines.lock", True)


@pytest.mark.parametrize("name", ["deepinfer.toml", "pyproject.toml"])
def test_the_gate_is_read_from_either_file(project: Path, name: str) -> None:
    prefix = "" if name == "deepinfer.toml" else "tool.deepinfer"
    header = f"[{prefix}]\n" if prefix else ""
    array = f"[[{prefix}.workloads]]" if prefix else "[[workloads]]"
    (project / name).write_text(
        f'{header}store = "locked"\nchecks = ["baselines"]\nmax_z = 4\n'
        f'{array}\nworkload = "code"\nmax_tokens = 64\n{array}\nworkload = "mine.jsonl"\n'
        'policy = "disjoint:128"\n'
    )
    gate = load_gate(project / "deep" / "down")
    assert (gate.store, gate.checks, gate.max_z) == (project / "locked", ("baselines",), 4.0)
    assert gate.plans == (
        ScoringPlan(workload="code", max_tokens=64),
        ScoringPlan(workload=str(project / "mine.jsonl"), policy="disjoint:128"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stroe = 'x'", "unknown key 'stroe'"),
        ("store = 3", "store is 3"),
        ("max_z = true", "max_z is True"),
        ("workloads = [{policy = 'document'}]", r"workloads\[0\]"),
        ("workloads = [{workload = 'code', max_tokens = '9'}]", "max_tokens is '9'"),
        ("not toml", "cannot be read"),
    ],
)
def test_a_wrong_gate_is_one_line(project: Path, text: str, message: str) -> None:
    (project / "deepinfer.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_gate(project)
    assert "\n" not in str(caught.value)


def test_another_tools_broken_file_is_not_ours_to_judge(project: Path) -> None:
    (project / "pyproject.toml").write_text("not toml")
    assert load_gate(project).origin is None
