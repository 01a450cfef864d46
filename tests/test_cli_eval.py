"""``score``, ``eval`` and ``compare`` through click: options, messages, exit codes. The engine is a fake."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deepinfer.cli import main
from deepinfer.engine.api import EngineConfig

TEXT = "Whether I shall turn out to be the hero of my own life. " * 4
Invoke = Callable[..., Result]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, mini_dir: Path) -> Any:
    """Fields of the fake engine that the commands will load in place of the real one."""
    path = Path(__file__).parent / "eval" / "fake_scorer.py"
    spec = importlib.util.spec_from_file_location("deepinfer_fake_scorer_cli", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    fields: dict[str, Any] = {}

    def load(model: Path | None, config: EngineConfig) -> Any:
        return module.FakeScorer(model_dir=model or mini_dir, config=config, **fields)

    native = ModuleType("deepinfer.eval.engines.native")
    native.NativeScorer = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, native.__name__, native)
    return fields


@pytest.fixture
def invoke(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run ``deepinfer`` in an empty folder that holds two texts and a token file."""
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_text(
        "".join(json.dumps({"id": f"t{i}", "text": TEXT[i:]}) + "\n" for i in range(9))
    )
    Path("ids.jsonl").write_text('{"id": "a", "token_ids": [0, 5, 6]}\n{"id": "b", "token_ids": [0, 13]}\n')
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def error_line(result: Result) -> str:
    """The one line on stderr that starts with ``error:``."""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return line


def test_eval_prints_tables_and_ends_with_0(invoke: Invoke) -> None:
    result = invoke("eval", "--workload", "texts.jsonl", "--context", 16, "--stride", 4, "--out", "run")
    assert result.exit_code == 0, result.output
    assert "texts, policy strided:16:4" in result.stdout
    assert "run: run" in result.stdout
    assert Path("run/manifest.json").exists()


def test_eval_writes_one_json_object_to_stdout(invoke: Invoke) -> None:
    arguments = ("--workload", "texts.jsonl", "--policy", "document", "--policy", "half:16", "--json")
    result = invoke("eval", *arguments, "--profile", "fast", "--prefill", "compact", "--keep", 9)
    found = json.loads(result.stdout)
    assert [corpus["policy"] for corpus in found["corpora"]] == ["document", "half:16"]
    assert found["configuration"]["profile"] == "fast"
    assert (found["configuration"]["prefill"], found["configuration"]["keep"]) == ("compact", 9)


def test_options_come_from_the_environment_too(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_EVAL_WORKLOAD", "texts.jsonl")
    monkeypatch.setenv("DEEPINFER_EVAL_MAX_TOKENS", "7")
    assert json.loads(invoke("eval", "--json").stdout)["configuration"]["max_tokens"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "proze"], "unknown workload 'proze'"),
        (["--workload", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["--policy", "sliding"], "unknown window policy 'sliding'"),
        (["--context", "9000"], "the model takes 8192 ids at most"),
        (["--workload", "longctx", "--policy", "document"], "sample 'longctx-00': 11348 ids are more than"),
        (["--out", "ids.jsonl"], "ids.jsonl: cannot write there (File exists)"),
        (["--keep", "80"], "--keep 80 is read by --prefill mask and compact only"),
    ],
)
def test_eval_refuses_in_one_line_with_2(invoke: Invoke, arguments: list[str], message: str) -> None:
    result = invoke("eval", *arguments)
    assert result.exit_code == 2
    assert message in error_line(result)
    assert result.stdout == ""


def test_eval_of_a_log_probability_that_is_not_finite_ends_with_5(invoke: Invoke, fake: Any) -> None:
    fake["override"] = {token: float("nan") for token in range(4096)}
    result = invoke("eval", "--workload", "texts.jsonl")
    assert result.exit_code == 5
    assert "log-probability is nan" in result.stdout


def test_score_ends_with_2_when_a_sample_fails_and_scores_the_others(invoke: Invoke, fake: Any) -> None:
    assert invoke("score", "--tokens", "ids.jsonl", "--out", "good").exit_code == 0
    fake["fail_ids"] = frozenset({13})
    result = invoke("score", "--tokens", "ids.jsonl", "--out", "run", "--logits", "l.safetensors", "--top", 2)
    assert result.exit_code == 2
    assert "scored 2 tokens of 2 samples into run" in result.stdout
    assert "failed: sample 'b': a token this engine refuses" in result.stdout
    assert Path("l.safetensors").exists()
    assert (
        json.loads(invoke("score", "--tokens", "ids.jsonl", "--out", "good", "--json").stdout)["failures"]
        == {}
    )


def test_score_names_file_and_line_of_a_bad_token(invoke: Invoke) -> None:
    Path("ids.jsonl").write_text('{"id": "a", "token_ids": [0, 70000]}\n')
    result = invoke("score", "--tokens", "ids.jsonl", "--out", "run")
    assert result.exit_code == 2
    assert error_line(result) == (
        "error: ids.jsonl:1: sample 'a': token_ids[1] is 70000, outside the model's 0 to 4095"
    )


def test_a_run_folder_in_use_ends_with_4(invoke: Invoke) -> None:
    from filelock import FileLock

    Path("run").mkdir()
    with FileLock("run/.lock", fallback_to_soft=False, is_singleton=False):
        result = invoke("score", "--tokens", "ids.jsonl", "--out", "run")
    assert result.exit_code == 4
    assert "run: another process writes this run" in error_line(result)


def test_compare_ends_with_0_1_2_or_5(invoke: Invoke, fake: Any) -> None:
    def evaluate(out: str, **fields: Any) -> None:
        fake.clear()
        fake.update(fields)
        invoke("eval", "--workload", "texts.jsonl", "--policy", "document", "--out", out)

    evaluate("a")
    evaluate("b")
    evaluate("c", override={5: -1.25, **dict.fromkeys(range(300, 4096), -9.0)})
    evaluate("n", override={token: float("nan") for token in range(4096)})
    same = invoke("compare", "a", "b")
    assert (same.exit_code, same.stdout.splitlines()[0]) == (0, "same: every bit of every row is equal")
    different = invoke("compare", "a", "c")
    assert different.exit_code == 1
    assert "first difference: sample 't0', position" in different.stdout
    worse = invoke("compare", "a", "c", "--tolerance", "--json")
    assert (worse.exit_code, json.loads(worse.stdout)["verdict"]) == (1, "different")
    assert "perplexity grew by" in json.loads(worse.stdout)["reason"]
    assert invoke("compare", "n", "n").exit_code == 5
    absent = invoke("compare", "a", "absent")
    assert absent.exit_code == 2
    assert "absent: is not a run folder" in error_line(absent)
    assert invoke("compare", "a", ".").exit_code == 2


@pytest.mark.parametrize("command", ["score", "eval", "compare"])
def test_help_ends_with_an_example_and_loads_no_room(invoke: Invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"deepinfer {command}" in result.stdout.split("Example:")[1]
