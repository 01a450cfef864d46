"""What every command shares: exit codes, one-line errors, help texts, the environment."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import deepinfer
from deepinfer.cli import main
from deepinfer.commands.group import CommandGroup
from deepinfer.commands.options import engine_config, engine_options
from deepinfer.commands.progress import progress_display
from deepinfer.engine.api import CacheFormat, EngineConfig, PrefillMode, Profile
from deepinfer.engine.errors import CheckpointError, NonFiniteError


def run_raising(error: BaseException, *arguments: str) -> Result:
    """The result of a command whose body raises."""

    @click.group(cls=CommandGroup)
    @click.option("--debug", is_flag=True)
    def group(debug: bool) -> None:
        pass

    @group.command()
    def fail() -> None:
        raise error

    return CliRunner().invoke(group, [*arguments, "fail"])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CheckpointError("w.weight is missing; fetch it"), 2, "error: w.weight is missing; fetch it"),
        (NonFiniteError("w.weight holds NaN"), 5, "error: w.weight holds NaN"),
        (
            OSError(errno.ENOSPC, "No space left on device", "run/x"),
            2,
            "error: run/x: No space left on device",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "run"), 2, "error: run: Permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (click.FileError("x.jsonl", "is a folder"), 2, "error: Could not open file 'x.jsonl': is a folder"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line_and_a_code(error: BaseException, code: int, line: str) -> None:
    result = run_raising(error)
    assert result.exit_code == code
    assert result.stderr.strip() == line
    assert result.stdout == ""


def test_a_defect_is_no_verdict() -> None:
    result = run_raising(ZeroDivisionError("division\nby zero"))
    assert result.exit_code == 70
    assert result.stderr == (
        "error: internal error, please report it: ZeroDivisionError: division by zero (--debug shows where)\n"
    )


def test_debug_shows_the_traceback_and_keeps_the_code() -> None:
    result = run_raising(CheckpointError("bad"), "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: bad\n")


@pytest.mark.parametrize(
    ("arguments", "where", "what"),
    [
        (["verify", "--nonsense"], "deepinfer verify", "No such option '--nonsense'."),
        (["verify", "--profile", "slow"], "deepinfer verify", "'slow' is not one of 'strict', 'fast'."),
        (["verify", "--threads", "0"], "deepinfer verify", "0 is not in the range 1<=x<=1024."),
        (["score", "--tokens", "ids.jsonl"], "deepinfer score", "Missing option '--out'."),
        (["inspect", "--model", "absent"], "deepinfer inspect", "Path 'absent' does not exist."),
        (["compare", "run-a"], "deepinfer compare", "Missing argument 'RUN_B'."),
        (["inspct"], "deepinfer", "No such command 'inspct'."),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(arguments: list[str], where: str, what: str) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="deepinfer")
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert what in line
    assert line.endswith(f" (see '{where} --help')")


def test_no_command_at_all_shows_the_help() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.stdout == f"deepinfer, version {deepinfer.__version__}\n"


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_help_ends_with_an_example_and_offers_json(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.stdout
    last = result.stdout.rstrip().splitlines()[-1]
    assert last.strip().startswith(("deepinfer ", "DEEPINFER_"))


def test_engine_options_default_to_the_dataclass() -> None:
    configs = []

    @click.command()
    @engine_options
    def command(**options: object) -> None:
        configs.append(engine_config(**options))  # type: ignore[arg-type]

    assert CliRunner().invoke(command, []).exit_code == 0
    given = "--profile fast --cache-format none --prefill mask --keep 80 --threads 1".split()
    assert CliRunner().invoke(command, given).exit_code == 0
    assert configs == [
        EngineConfig(),
        EngineConfig(
            profile=Profile.FAST,
            cache_format=CacheFormat.NONE,
            prefill=PrefillMode.MASK,
            keep=80,
            num_threads=1,
        ),
    ]


def test_options_come_from_the_environment_too() -> None:
    result = CliRunner().invoke(main, ["verify"], env={"DEEPINFER_VERIFY_TIER": "deep"})
    assert result.exit_code == 2
    assert "'deep' is not one of" in result.stderr


def test_inspect_prints_the_bundled_model() -> None:
    result = CliRunner().invoke(main, ["inspect", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["num_parameters"] == 28_834_280
    assert "28,834,280" in CliRunner().invoke(main, ["inspect"]).stdout


def test_inspect_names_what_is_wrong_with_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf-8")
    result = CliRunner().invoke(main, ["inspect", "--model", str(path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {path}: ")
    assert result.stderr.count("\n") == 1


def test_progress_in_a_log_is_one_line_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display() as progress:
        for done in range(100):
            progress("prose", done, 100)
        progress("code", 99, 100)
        progress("code", 100, 100)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["[0/100] prose", "[99/100] code", "[100/100] code"]
    assert captured.out == ""
