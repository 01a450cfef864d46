"""How a command ends: one line on stderr and an exit code of the table in product.md section 5.

Beyond that table, 70 means a defect of deepinfer itself, so that a crash can never be read as a verdict, and
141 that the reader of our output went away.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from deepinfer.baselines.errors import BaselineError
from deepinfer.engine.errors import DeepInferError

EXIT_USAGE = 2
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


class CommandGroup(click.Group):
    """Turns every way a command can end into one line on stderr and an exit code of the table."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit with a code of the table: click ends with 1 where 1 would mean *different*."""
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            if not standalone_mode:
                raise
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                error.show()  # the whole help is the answer to a command without arguments
            else:
                click.echo(f"error: {describe_click_error(error)}", err=True)
            status = EXIT_USAGE
        except click.Abort:  # also what click makes of KeyboardInterrupt
            click.echo("interrupted", err=True)
            status = EXIT_INTERRUPTED
        if not standalone_mode:
            return status
        # What is alive now lives to the end: the collections of the interpreter's exit need not walk it (1 s
        # of it after a command that has loaded torch and compiled kernels).
        gc.freeze()
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of ours and defects end in one line, ``--debug`` adds the traceback."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # Nobody reads us any more; the interpreter's last flush must not fail a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(EXIT_PIPE_CLOSED)
        except Exception as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            message, status = describe_error(error)
            click.echo(f"error: {message}", err=True)
            ctx.exit(status)


def describe_click_error(error: click.ClickException) -> str:
    """One line for an error of click's own, which would print the usage above it; names the help instead."""
    text = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text} (see '{context.command_path} --help')" if context else text


def describe_error(error: Exception) -> tuple[str, int]:
    """One line and an exit code for an exception that reached the command line."""
    if isinstance(error, DeepInferError | BaselineError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", EXIT_USAGE
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"internal error, please report it: {name}: {text} (--debug shows where)", EXIT_DEFECT
