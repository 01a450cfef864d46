"""``deepinfer generate``: options in, text, tables or JSON out; ``eval.generate`` does the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer.commands.options import (
    ENGINE_OPTIONS,
    SPECULATION_OPTIONS,
    engine_config,
    engine_options,
    example,
    json_option,
    model_option,
    speculation_changes,
    speculation_options,
)
from deepinfer.commands.sampling import sampling_options, sampling_params

if TYPE_CHECKING:
    from deepinfer.eval.generate import Outcome, TextPiece
    from deepinfer.eval.prompts import Prompt
    from deepinfer.eval.tokenizer import TextTokenizer


@click.command(
    epilog=example(
        "deepinfer generate --prompt 'Once upon a time' --max-tokens 40 --seed 7",
        "deepinfer generate --prompt 'def main' --temperature 0 --logprobs 3 --json",
    )
)
@model_option
@click.option("--prompt", metavar="TEXT", help="Text to continue; the begin token is added, once.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File whose whole text is the prompt, final newline included; - is stdin.",
)
@click.option(
    "--tokens",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON lines {id, token_ids}, one prompt each; no begin token is added.",
)
@sampling_options
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="Ends a sample; the text is cut before it.  Repeatable."
)
@click.option(
    "--logprobs",
    type=click.IntRange(min=0),
    metavar="K",
    help="Show each token's log-probability and the K most likely tokens.",
)
@click.option("--prompt-logprobs", is_flag=True, help="Score the prompt too (--json has every token).")
@speculation_options
@engine_options
@json_option
def generate(
    model: Path | None,
    prompt: str | None,
    prompt_file: Path | None,
    tokens: Path | None,
    stop: tuple[str, ...],
    logprobs: int | None,
    prompt_logprobs: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Continue one prompt or many; the same seed gives the same tokens in any company.

    One sample is printed as it comes; several are printed in order, each when it has ended. A prompt that
    cannot be run fails in its own place, and the exit code is 2.
    """
    if sum(source is not None for source in (prompt, prompt_file, tokens)) != 1:
        raise click.UsageError("give exactly one of --prompt, --prompt-file and --tokens")
    from deepinfer.eval.detokenizer import StopStrings
    from deepinfer.eval.engines.native import NativeScorer
    from deepinfer.eval.generate import generate as run
    from deepinfer.eval.generate import in_order, with_seed
    from deepinfer.eval.generation_report import exit_code, to_document
    from deepinfer.eval.tokenizer import TextTokenizer

    config = engine_config(**{name: options.pop(name) for name in ENGINE_OPTIONS})
    drafts, is_asynchronous = speculation_changes(**{name: options.pop(name) for name in SPECULATION_OPTIONS})
    config = replace(config, speculation=drafts, asynchronous=is_asynchronous)
    given = sampling_params(**options, num_logprobs=logprobs or 0)
    params, stops = with_seed(given), StopStrings(stop)
    engine = NativeScorer(model, config)
    tokenizer = TextTokenizer(engine.model_dir, engine.bos_token_id, engine.vocab_size)
    prompts = _read_prompts(prompt, prompt_file, tokens, tokenizer, engine.vocab_size)
    if given.seed is None:
        click.echo(f"seed {params.seed} was drawn; --seed {params.seed} repeats this", err=True)
    events = run(engine, prompts, params, stops, tokenizer, engine.vocab_size, prompt_logprobs)
    if as_json:
        outcomes = list(in_order(events, prompts, params.n))
        click.echo(json.dumps(to_document(engine, prompts, params, stops, outcomes), indent=2))
        return exit_code(outcomes)
    if len(prompts) == params.n == 1:
        return exit_code(_print_stream(events, tokenizer, logprobs is not None))
    return exit_code(_print_each(in_order(events, prompts, params.n), tokenizer, logprobs is not None))


def _read_prompts(
    prompt: str | None,
    prompt_file: Path | None,
    tokens: Path | None,
    tokenizer: TextTokenizer,
    vocab_size: int,
) -> list[Prompt]:
    from deepinfer.eval.json_lines import read_bytes
    from deepinfer.eval.prompts import file_prompt, text_prompt, token_prompts

    if prompt is not None:
        return [text_prompt(prompt, "prompt", tokenizer)]
    if tokens is not None:
        return token_prompts(tokens, vocab_size)
    assert prompt_file is not None, "one of three was given"
    if str(prompt_file) == "-":
        return [file_prompt(sys.stdin.buffer.read(), "stdin", tokenizer)]
    return [file_prompt(read_bytes(prompt_file), str(prompt_file), tokenizer)]


def _print_stream(
    events: Iterable[TextPiece | Outcome], tokenizer: TextTokenizer, with_logprobs: bool
) -> list[Outcome]:
    """Print the only sample's text as it comes."""
    from deepinfer.eval.generate import Sample, TextPiece
    from deepinfer.eval.generation_report import describe_end, describe_prompt, render_logprobs

    outcomes: list[Outcome] = []
    for event in events:
        if isinstance(event, TextPiece):
            click.echo(event.text, nl=False)
        elif isinstance(event, Sample):
            click.echo()
            click.echo(f"finished: {describe_end(event)}", err=True)
            if scored := describe_prompt(event):
                click.echo(scored)
            if with_logprobs:
                click.echo(render_logprobs(event, tokenizer))
            outcomes.append(event)
        else:
            click.echo(f"failed: {event.reason}", err=True)
            outcomes.append(event)
    return outcomes


def _print_each(outcomes: Iterable[Outcome], tokenizer: TextTokenizer, with_logprobs: bool) -> list[Outcome]:
    """Print samples and failures one after the other, as soon as their turn comes."""
    from deepinfer.eval.generate import Sample
    from deepinfer.eval.generation_report import describe_prompt, render_heading, render_logprobs

    printed: list[Outcome] = []
    for outcome in outcomes:
        if isinstance(outcome, Sample):
            click.echo(f"{render_heading(outcome)}\n{outcome.text}")
            if scored := describe_prompt(outcome):
                click.echo(scored)
            if with_logprobs:
                click.echo(render_logprobs(outcome, tokenizer))
        else:
            click.echo(f"failed: {outcome.reason}", err=True)
        printed.append(outcome)
    return printed
