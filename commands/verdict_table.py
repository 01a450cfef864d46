"""A verdict on a terminal: the table of checks in colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.verify.result import Verdict

_COLOURS = {"same": "green", "different": "bold red", "not_applicable": "dim"}
_OPEN = "yellow"


def print_verdict(verdict: Verdict) -> None:
    """Print checks, explanations, notes and the verdict to stdout, wrapped to the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from deepinfer.verify.report import closing_lines, explanation_of

    console = Console(highlight=False)
    console.print("  ".join(f"[dim]{escape(k)}[/dim] {escape(v)}" for k, v in verdict.subject.items()))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, right in (("check", False), ("result", False), ("rows", True), ("s", True)):
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    table.add_column("what was found", overflow="fold")
    for result in verdict.results:
        colour = _COLOURS.get(result.status.value, _OPEN)
        mark = f"[{colour}]{result.status.value.replace('_', ' ')}[/{colour}]"
        count = f"{result.num_comparisons:,}" if result.num_comparisons else ""
        table.add_row(escape(result.name), mark, count, f"{result.seconds:.1f}", escape(result.detail))
    console.print(table)
    for line in explanation_of(verdict):
        console.print(escape(line), soft_wrap=True)
    *notes, closing = closing_lines(verdict)
    for note in notes:
        console.print(f"[dim]{escape(note)}[/dim]")
    colour = _COLOURS.get(verdict.name, _OPEN)
    console.print(f"[{colour}]{escape(closing)}[/{colour}]")
