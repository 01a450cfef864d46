"""Options that several commands share; every default is the one of ``EngineConfig``."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from deepinfer.engine.api import CacheFormat, Device, EngineConfig, PrefillMode, Profile
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.speculation.options import Speculation, SpeculationPolicy

Command = Callable[..., Any]


def example(*lines: str) -> str:
    """An epilog that click does not re-wrap."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


model_option = click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True),
    help="Checkpoint folder in the released layout.  [default: the bundled model]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")


def choice_option(flag: str, values: type[StrEnum], about: str) -> Callable[[Command], Command]:
    """An option over the values of an enum; its default is the one that ``EngineConfig`` has for it."""
    default = getattr(EngineConfig(), flag.removeprefix("--").replace("-", "_"))
    default = default.policy if isinstance(default, Speculation) else default
    names = [item.value for item in values]
    return click.option(flag, type=click.Choice(names), default=default.value, show_default=True, help=about)


profile_option = choice_option("--profile", Profile, "Arithmetic of activations.")
device_option = choice_option("--device", Device, "Where the model runs; strict bits are the same on both.")
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1, max=1024),
    help="CPU threads; the bits do not depend on it.  [default: all cores]",
)


def speculation_options(command: Command) -> Command:
    """Add how to speculate; `speculation_changes` reads it."""
    for option in (
        click.option(
            "--async/--no-async",
            "asynchronous",
            default=None,
            help="Plan a step while the one before it runs; the bits do not depend on it.  "
            "[default: on a CUDA device]",
        ),
        click.option(
            "--draft-tokens",
            type=click.IntRange(min=1),
            help="Most drafted tokens that a step verifies.  [default: the model's block]",
        ),
        choice_option("--speculation", SpeculationPolicy, "Verify drafts; the bits do not depend on it."),
    ):
        command = option(command)
    return command


def speculation_changes(
    speculation: str, draft_tokens: int | None, asynchronous: bool | None
) -> tuple[Speculation, bool | None]:
    """The values that the options of `speculation_options` describe.

    Raises:
        ConfigError: a number of drafts without a policy that drafts.
    """
    policy = SpeculationPolicy(speculation)
    if draft_tokens is not None and policy is SpeculationPolicy.OFF:
        raise ConfigError("--draft-tokens is read by --speculation fixed and confidence only; add one")
    return Speculation(policy=policy, num_drafts=draft_tokens), asynchronous


SPECULATION_OPTIONS = ("speculation", "draft_tokens", "asynchronous")
"""What `speculation_options` adds, by the names in which a command receives it."""
ENGINE_OPTIONS = ("profile", "device", "cache_format", "prefill", "keep", "threads", "allow_long")
"""What `engine_options` adds, by the names in which a command receives it."""


def engine_options(command: Command) -> Command:
    """Add the options of ``EngineConfig``; the command hands their values to `engine_config`."""
    cache_format = "Round trips of the caches; none is for comparison with references only."
    keep = "Trailing rows that mask and compact keep.  [default: window + 8]"
    for option in (
        click.option(
            "--allow-long", is_flag=True, help="Read past the length that the model was trained for."
        ),
        threads_option,
        click.option("--keep", type=click.IntRange(min=1), help=keep),
        choice_option("--prefill", PrefillMode, "Which rows the decoder layers compute."),
        choice_option("--cache-format", CacheFormat, cache_format),
        device_option,
        profile_option,
    ):
        command = option(command)
    return command


def engine_config(
    profile: str,
    device: str = Device.CPU.value,
    cache_format: str = CacheFormat.RELEASED.value,
    prefill: str = PrefillMode.OFF.value,
    keep: int | None = None,
    threads: int | None = None,
    allow_long: bool = False,
) -> EngineConfig:
    """The config that the options of `engine_options` describe, or those of them that a command has.

    Raises:
        ConfigError: kept rows without a mode that keeps rows; ignoring them would answer another question.
    """
    if keep is not None and PrefillMode(prefill) is PrefillMode.OFF:
        raise ConfigError(
            f"--keep {keep} is read by --prefill mask and compact only; add one or leave it out"
        )
    return EngineConfig(
        profile=Profile(profile),
        cache_format=CacheFormat(cache_format),
        prefill=PrefillMode(prefill),
        keep=keep,
        num_threads=threads,
        allow_long=allow_long,
        device=Device(device),
        backend=Device(device).kernel_set,
    )
