"""Options of ``SamplingParams``; every default is the one of the dataclass."""

from __future__ import annotations

import click

from deepinfer.commands.options import Command
from deepinfer.engine.api import SamplingParams

_DEFAULT = SamplingParams()


def _read_bias(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[int, float] | None:
    """``ID=VALUE`` pairs as a map, None if there are none; what they may be is the engine's to say."""
    bias: dict[int, float] = {}
    for value in values:
        token_id, _, number = value.partition("=")
        try:
            pair = int(token_id), float(number)
        except ValueError:
            raise click.BadParameter(
                f"{value!r} is not ID=VALUE, for example 17=-1.5 or 17=-inf", context, option
            ) from None
        if pair[0] in bias:
            raise click.BadParameter(f"token {pair[0]} is given twice; keep one", context, option)
        bias[pair[0]] = pair[1]
    return bias or None


def sampling_options(command: Command) -> Command:
    """Add the options of ``SamplingParams``; the command hands their values to `sampling_params`."""
    for option in (
        click.option(
            "--logit-bias",
            multiple=True,
            metavar="ID=VALUE",
            callback=_read_bias,
            help="Added to a token's logit; -inf bans it.  Repeatable.",
        ),
        click.option("--ignore-eos", is_flag=True, help="Go on after the end token."),
        click.option(
            "--stop-token-id", "stop_token_ids", multiple=True, type=int, help="Ends a sample; repeatable."
        ),
        click.option("--n", default=_DEFAULT.n, show_default=True, help="Samples of each prompt."),
        click.option("--seed", type=int, help="Same seed, same tokens; 64 bits.  [default: drawn]"),
        click.option(
            "--max-tokens", default=_DEFAULT.max_tokens, show_default=True, help="Most tokens of a sample."
        ),
        click.option(
            "--min-p",
            default=_DEFAULT.min_p,
            show_default=True,
            help="Least probability, as a fraction of the largest; 0 is off.",
        ),
        click.option(
            "--top-k", default=_DEFAULT.top_k, show_default=True, help="Most likely tokens only; 0 is off."
        ),
        click.option(
            "--top-p", default=_DEFAULT.top_p, show_default=True, help="Most likely mass only; 1 is off."
        ),
        click.option("--temperature", default=_DEFAULT.temperature, show_default=True, help="0 is greedy."),
    ):
        command = option(command)
    return command


def sampling_params(
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    max_tokens: int,
    seed: int | None,
    n: int,
    stop_token_ids: tuple[int, ...],
    ignore_eos: bool,
    logit_bias: dict[int, float] | None,
    num_logprobs: int,
) -> SamplingParams:
    """The parameters that the options of `sampling_options` describe."""
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        logit_bias=logit_bias,
        seed=seed,
        n=n,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        num_logprobs=num_logprobs,
    )
