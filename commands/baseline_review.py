"""Baseline commands of the review: status, diff, accept, reject, history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer.commands.baseline_options import (
    chosen_keys,
    ci_option,
    command_line,
    html_option,
    lock_options,
    locking,
    reason_option,
    record_of,
    selection,
    selection_options,
    store_option,
    store_to_read,
    store_to_write,
)
from deepinfer.commands.options import example, json_option
from deepinfer.engine.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.baselines.records import Change

keys_argument = click.argument("keys", nargs=-1, metavar="[KEY]...")
all_option = click.option("--all", "take_all", is_flag=True, help="Everything that is selected and waits.")


@click.command(epilog=example("deepinfer baseline status", "deepinfer baseline status --keys --json"))
@store_option
@selection_options
@click.option("--keys", "list_keys", is_flag=True, help="List every key.")
@json_option
def status(store: Path | None, list_keys: bool, as_json: bool, **globs: Any) -> None:
    """Print what is locked and what waits for review."""
    from deepinfer.baselines.state import entries
    from deepinfer.baselines.summary import canonical_digest, summarise
    from deepinfer.verify.baseline_text import render_status

    baselines, chosen = store_to_read(store), selection(**globs)
    state = baselines.state()
    rows = [record_of(row) for row in summarise(state, chosen.matches)]
    keys = [
        {
            "key": str(key),
            "status": name,
            "tokens": entry.num_tokens,
            "nll": entry.nll,
            "digest": entry.digest,
        }
        for name, table in (("locked", state.locked), ("pending", state.pending))
        for key, entry in (entries(table) if list_keys else ())
        if chosen.matches(key)
    ]
    if as_json:
        record = {
            "store": str(baselines.root),
            "revision": state.number,
            "generation": state.generation,
            "scopes": rows,
            "locked_digest": canonical_digest(state.locked),
            "pending_digest": canonical_digest(state.pending),
        }
        click.echo(json.dumps(record | ({"keys": keys} if list_keys else {}), indent=2))
        return
    shown = [row | {"perplexity": f"{row['perplexity']:.6g}" if row["perplexity"] else "-"} for row in rows]
    click.echo(render_status(shown))
    for row in keys:
        click.echo(f"{row['status']:<8} {row['key']}")
    click.echo(f"{baselines.root}: revision {state.number}")


@click.command(epilog=example("deepinfer baseline diff", "deepinfer baseline diff --html diff.html"))
@keys_argument
@store_option
@selection_options
@html_option
@json_option
def diff(keys: tuple[str, ...], store: Path | None, html: Path | None, as_json: bool, **globs: Any) -> int:
    """Show what waits for review beside what is locked.

    Exit codes: 0 nothing waits, 1 something does.
    """
    from deepinfer.baselines.selection import find_keys
    from deepinfer.baselines.state import entries
    from deepinfer.verify.baseline_diff import diff_pending
    from deepinfer.verify.baseline_html import render_html
    from deepinfer.verify.baseline_text import render_diff
    from deepinfer.verify.written import require_folders

    require_folders(html)
    baselines, chosen = store_to_read(store), selection(**globs)
    waiting = [key for key, _ in entries(baselines.state().pending) if chosen.matches(key)]
    report = diff_pending(baselines, find_keys(waiting, keys) if keys else waiting)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else render_diff(report))
    if html is not None:
        html.write_text(render_html(report), encoding="utf-8")
    return report.exit_code


@click.command(
    epilog=example("deepinfer baseline accept --store mine --all --reason 'torch 2.14, see the diff'")
)
@keys_argument
@all_option
@store_option
@selection_options
@lock_options
@reason_option
@ci_option
@json_option
def accept(
    keys: tuple[str, ...],
    take_all: bool,
    store: Path | None,
    reason: str,
    ci: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Lock what waits for review: KEYs (whole, sample ids, or globs on either) or --all, with a reason."""
    if not reason.strip():
        raise ConfigError("accept needs --reason: the history must say why the bits were allowed to move")
    _decide("accept", keys, take_all, store, reason, ci, as_json, options)


@click.command(epilog=example("deepinfer baseline reject --store mine --all --reason 'driver bug'"))
@keys_argument
@all_option
@store_option
@selection_options
@lock_options
@reason_option
@ci_option
@json_option
def reject(
    keys: tuple[str, ...],
    take_all: bool,
    store: Path | None,
    reason: str,
    ci: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Drop what waits for review; what is locked stays."""
    _decide("reject", keys, take_all, store, reason, ci, as_json, options)


@click.command(epilog=example("deepinfer baseline history", "deepinfer baseline history prose-00"))
@keys_argument
@store_option
@json_option
def history(keys: tuple[str, ...], store: Path | None, as_json: bool) -> None:
    """Print every revision of the ledger, or those that concern the KEYs: who, when, why, what."""
    from fnmatch import fnmatchcase

    from deepinfer.verify.baseline_text import render_history

    def concerns(change: Change) -> bool:
        names = (str(change.key), change.key.sample)
        return any(name == text or fnmatchcase(name, text) for name in names for text in keys)

    steps = []
    for info, changes in store_to_read(store).history():
        chosen = [change for change in changes if not keys or concerns(change)]
        if chosen or not keys:
            steps.append((info, chosen))
    if not as_json:
        click.echo(render_history(steps))
        return
    records = [
        {
            "revision": info.number,
            "generation": info.generation,
            **info.note.__dict__,
            "changes": [
                {"kind": change.kind, "key": str(change.key)}
                | (change.entry._asdict() if change.entry else {})
                for change in chosen
            ],
        }
        for info, chosen in steps
    ]
    click.echo(json.dumps(records, indent=2))


def _decide(
    action: str,
    keys: tuple[str, ...],
    take_all: bool,
    store: Path | None,
    reason: str,
    ci: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    from deepinfer.baselines.committing import Author

    lock = locking(*(options.pop(name) for name in ("lock_timeout", "lock_kind", "lock_stale")))
    baselines = store_to_write(store, ci, lock)
    chosen = chosen_keys(baselines.state(), keys, take_all, selection(**options).matches)
    writer = baselines.writer(Author(reason=reason, command=command_line()))
    changes = writer.accept(chosen) if action == "accept" else writer.reject(chosen)
    done = [str(change.key) for change in changes]
    if as_json:
        click.echo(json.dumps({"store": str(baselines.root), "action": action, "keys": done}, indent=2))
    else:
        click.echo(f"{action}: {len(done)} keys ({baselines.root})")
