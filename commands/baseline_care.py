"""Baseline commands that look after a store: fsck, prune, size, unlock, upgrade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from deepinfer.commands.baseline_options import (
    ci_option,
    command_line,
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


@click.command(epilog=example("deepinfer baseline fsck", "deepinfer baseline fsck --dry-run --json"))
@store_option
@click.option("--dry-run", is_flag=True, help="Do not restore HEAD and remove no leftovers.")
@json_option
def fsck(store: Path | None, dry_run: bool, as_json: bool) -> int:
    """Recompute every hash of a store and name the first bad record.

    A lost or torn HEAD is restored from the chain. Exit codes: 0 sound, 3 damaged.
    """
    from deepinfer.baselines.fsck import check_store
    from deepinfer.verify.baseline_text import render_fsck

    report = check_store(store_to_read(store), repair=not dry_run)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else render_fsck(report))
    return report.exit_code


@click.command(
    epilog=example("deepinfer baseline prune --store mine --sample 'old-*' --reason 'text withdrawn'")
)
@store_option
@selection_options
@lock_options
@reason_option
@ci_option
@json_option
def prune(store: Path | None, reason: str, ci: bool, as_json: bool, **options: Any) -> None:
    """Delete the blobs that no key needs any more; with globs and --reason, end the matching keys first.

    Run it from one machine while nobody refreshes: writers in flight are refused.
    """
    from deepinfer.baselines.committing import Author
    from deepinfer.baselines.state import entries

    lock = locking(*(options.pop(name) for name in ("lock_timeout", "lock_kind", "lock_stale")))
    baselines = store_to_write(store, ci, lock)
    writer = baselines.writer(Author(reason=reason, command=command_line()))
    ended: list[str] = []
    if any(glob != "*" for glob in options.values()):
        if not reason.strip():
            raise ConfigError("ending keys needs --reason: the history must say why they are gone")
        chosen, state = selection(**options), baselines.state()
        keys = dict.fromkeys(key for table in (state.locked, state.pending) for key, _ in entries(table))
        ended = [str(change.key) for change in writer.remove([key for key in keys if chosen.matches(key)])]
    removed = writer.remove_blobs()
    freed = sum(blob.size_bytes for blob in removed)
    if as_json:
        record = {"ended_keys": ended, "removed_blobs": len(removed), "freed_bytes": freed}
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo(f"prune: {len(ended)} keys ended, {len(removed)} blobs removed, {freed:,} bytes freed")


@click.command(epilog=example("deepinfer baseline size"))
@store_option
@json_option
def size(store: Path | None, as_json: bool) -> None:
    """Print the bytes that a store takes, and those that prune would free."""
    from deepinfer.baselines.summary import measure

    found = measure(store_to_read(store))
    if as_json:
        click.echo(json.dumps(record_of(found), indent=2))
    else:
        click.echo(
            f"{found.num_revisions} revisions of {found.ledger_bytes:,} bytes, {found.num_blobs} blobs of "
            f"{found.blob_bytes:,} bytes, {found.unused_bytes:,} of them unused"
        )


@click.command(epilog=example("deepinfer baseline unlock --store mine"))
@store_option
@click.option("--break", "claim", metavar="NAME", help="Break this claim; its holder can publish no more.")
@click.option(
    "--kind",
    type=click.Choice(["kernel", "strict", "generation"]),
    help="Change how the writers of this store exclude each other.",
)
@reason_option
@ci_option
@json_option
def unlock(
    store: Path | None, claim: str | None, kind: str | None, reason: str, ci: bool, as_json: bool
) -> None:
    """Show who holds the locks of a store; break a dead holder's claim, or change the kind of lock."""
    from deepinfer.baselines.committing import Author
    from deepinfer.baselines.holders import break_claim, list_locks
    from deepinfer.baselines.locks import LockKind
    from deepinfer.baselines.store import LockOptions
    from deepinfer.baselines.upgrade import set_lock_kind

    author = Author(reason=reason, command=command_line())
    if claim is None and kind is None:
        baselines = store_to_read(store)
    else:
        baselines = store_to_write(store, ci, LockOptions())
    folder = baselines.root / "locks"
    if claim is not None:
        owner = [view.path for view in list_locks(folder) if claim in {found.name for found in view.claims}]
        break_claim(owner[0] if owner else folder, claim)
        baselines.writer(author).fence()
    if kind is not None:
        set_lock_kind(baselines, author, LockKind(kind))
    used = baselines.require_store().lock_kind
    views = list_locks(folder)
    if as_json:
        records = [
            {
                "lock": view.path.name,
                "holder": view.holder,
                "claims": [found.__dict__ for found in view.claims],
            }
            for view in views
        ]
        click.echo(json.dumps({"kind": used and used.value, "locks": records, "broken": claim}, indent=2))
        return
    for view in views:
        click.echo(f"{view.path.name}: {view.holder or 'free, as far as the note beside it tells'}")
        for found in view.claims:
            click.echo(f"  claim {found.name} ({found.state}): pid {found.pid} on {found.host}")
    click.echo(f"{baselines.root}: {used or 'unknown'} locks" + (f", broke {claim}" if claim else ""))


@click.command(epilog=example("deepinfer baseline upgrade --store mine"))
@store_option
@lock_options
@reason_option
@ci_option
@json_option
def upgrade(
    store: Path | None,
    reason: str,
    ci: bool,
    as_json: bool,
    lock_timeout: float,
    lock_kind: str | None,
    lock_stale: float,
) -> None:
    """Bring a store of an earlier version to the newest schema; nothing that is locked changes."""
    from deepinfer.baselines.committing import Author
    from deepinfer.baselines.locks import LockKind
    from deepinfer.baselines.upgrade import upgrade_store

    baselines = store_to_write(store, ci, locking(lock_timeout, lock_kind, lock_stale))
    kind = None if lock_kind is None else LockKind(lock_kind)
    before, after = upgrade_store(baselines, Author(reason=reason, command=command_line()), kind)
    if as_json:
        click.echo(json.dumps({"store": str(baselines.root), "from": before, "to": after}, indent=2))
    else:
        click.echo(f"{baselines.root}: schema version {before} -> {after}")
