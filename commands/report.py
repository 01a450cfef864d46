"""``deepinfer report``: a stored verdict as a page."""

from __future__ import annotations

from pathlib import Path

import click

from deepinfer.commands.options import example

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    epilog=example(
        "deepinfer verify --quick --json > verdict.json", "deepinfer report verdict.json --out verdict.html"
    )
)
@click.argument("verdict", type=FILE)
@click.option("--out", type=FILE, required=True, help="Page to write; it needs no other file.")
def report(verdict: Path, out: Path) -> None:
    """Turn the JSON of `deepinfer verify` into a self-contained HTML page."""
    from deepinfer.verify.page import read_verdict, render_html
    from deepinfer.verify.written import require_folders, writing

    require_folders(out)
    page = render_html(read_verdict(verdict))
    with writing(out):
        out.write_text(page, encoding="utf-8")
    click.echo(f"wrote {out}")
