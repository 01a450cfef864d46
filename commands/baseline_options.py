"""Options that the baseline commands share, and what they turn into."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer.commands.options import Command
from deepinfer.engine.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.baselines.key import Key
    from deepinfer.baselines.selection import Selection
    from deepinfer.baselines.state import State
    from deepinfer.baselines.store import Baselines, LockOptions
    from deepinfer.eval.scoring_plan import ScoringPlan
    from deepinfer.verify.gate import Gate

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="DEEPINFER_STORE",
    help="Store of baselines.  [env: DEEPINFER_STORE; default: baselines.lock of the project, else, "
    "for reading, the bundled one]",
)
ci_option = click.option(
    "--ci/--no-ci", envvar="CI", help="Continuous integration: never write, and require every key.  [env: CI]"
)
reason_option = click.option("--reason", default="", help="Why; kept in the history.")
html_option = click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page with pictures."
)


def selection_options(command: Command) -> Command:
    """Globs on the parts of a key; the command hands their values to `selection`."""
    for flag, about in (
        ("--model-name", "Only models whose name matches this glob."),
        ("--platform", "Only platforms that match this glob."),
        ("--workload", "Only workloads whose name matches this glob; 'prose' is enough."),
        ("--sample", "Only samples whose id matches this glob."),
    ):
        command = click.option(flag, metavar="GLOB", default="*", show_default=True, help=about)(command)
    return command


def selection(sample: str, workload: str, platform: str, model_name: str) -> Selection:
    """The selection that the options of `selection_options` describe."""
    from deepinfer.baselines.selection import Selection

    return Selection(sample=sample, workload=workload, platform=platform, model=model_name)


def plan_options(command: Command) -> Command:
    """Texts other than those of the project's gate; the command hands their values to `plans_of`."""
    for option in (
        click.option("--max-tokens", type=click.IntRange(min=1), help="With --texts: first tokens of each."),
        click.option("--policy", help="With --texts: window policy.  [default: document]"),
        click.option(
            "--texts",
            multiple=True,
            metavar="NAME|FILE",
            help="These texts in place of the project's; repeatable.",
        ),
    ):
        command = option(command)
    return command


def plans_of(
    gate: Gate, texts: tuple[str, ...], policy: str | None, max_tokens: int | None
) -> tuple[ScoringPlan, ...]:
    """The plans that were asked for.

    Raises:
        ConfigError: a policy or a length without texts; the gate has its own.
    """
    from deepinfer.eval.scoring_plan import ScoringPlan

    if texts:
        return tuple(
            ScoringPlan(workload=name, policy=policy or "document", max_tokens=max_tokens) for name in texts
        )
    if policy is not None or max_tokens is not None:
        raise ConfigError("--policy and --max-tokens belong to --texts; name texts, or leave them out")
    return gate.plans


def lock_options(command: Command) -> Command:
    """How to wait for other writers; the command hands their values to `locking`."""
    for option in (
        click.option(
            "--lock-stale",
            type=click.FloatRange(min=0.3),
            default=90.0,
            show_default=True,
            help="Generation locks: seconds without renewal until a holder is replaced.",
        ),
        click.option(
            "--lock-kind",
            type=click.Choice(["kernel", "strict", "generation"]),
            help="Lock of a store that is created now.  [default: by the mount]",
        ),
        click.option(
            "--lock-timeout",
            type=click.FloatRange(min=0),
            default=60.0,
            show_default=True,
            help="Seconds to wait for another writer.",
        ),
    ):
        command = option(command)
    return command


def locking(lock_timeout: float, lock_kind: str | None, lock_stale: float) -> LockOptions:
    """The lock options that the options of `lock_options` describe."""
    from deepinfer.baselines.locks import LockKind
    from deepinfer.baselines.store import LockOptions

    kind = None if lock_kind is None else LockKind(lock_kind)
    return LockOptions(kind=kind, timeout_s=lock_timeout, stale_s=lock_stale)


def current_gate() -> Gate:
    """The gate of the project around the working folder."""
    from deepinfer.verify.gate import load_gate

    return load_gate(Path.cwd())


def store_to_read(named: Path | None) -> Baselines:
    """The store a reading command works on."""
    from deepinfer.baselines.store import Baselines
    from deepinfer.verify.gate import choose_store

    return Baselines(choose_store(named, current_gate()).path)


def store_to_write(named: Path | None, ci: bool, options: LockOptions) -> Baselines:
    """The store a writing command works on; the bundled one is never written.

    Raises:
        ConfigError: under continuous integration, which never writes a baseline.
    """
    from deepinfer.baselines.store import Baselines
    from deepinfer.verify.gate import choose_store_to_write

    if ci:
        raise ConfigError(
            "CI is set, and continuous integration never writes a baseline; use --no-ci if you mean it"
        )
    return Baselines(choose_store_to_write(named, current_gate()), options=options)


def command_line() -> str:
    """What the user typed, for the history."""
    return " ".join(["deepinfer", *sys.argv[1:]])


def chosen_keys(
    state: State, texts: tuple[str, ...], take_all: bool, chosen: Callable[[Key], bool]
) -> list[Key]:
    """Keys that wait for review and were named.

    Raises:
        ConfigError: neither keys nor --all, or both.
        BaselineError: a text that names no waiting key.
    """
    from deepinfer.baselines.selection import find_keys
    from deepinfer.baselines.state import entries

    waiting = [key for key, _ in entries(state.pending) if chosen(key)]
    if bool(texts) == take_all:
        raise ConfigError(
            "name the keys (see 'deepinfer baseline diff'), or give --all; not both, not neither"
        )
    return waiting if take_all else find_keys(waiting, texts)


def record_of(value: Any) -> Any:
    """A named tuple as JSON values."""
    return {name: str(item) if name == "scope" else item for name, item in value._asdict().items()}
