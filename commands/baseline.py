"""``deepinfer baseline``: locks bits, checks them, and puts changes up for review."""

from __future__ import annotations

import click

from deepinfer.commands.baseline_care import fsck, prune, size, unlock, upgrade
from deepinfer.commands.baseline_review import accept, diff, history, reject, status
from deepinfer.commands.baseline_scoring import check, lock, refresh
from deepinfer.commands.options import example


@click.group(
    epilog=example(
        "deepinfer baseline check",
        "deepinfer baseline lock --store mine --workload prose",
        "deepinfer baseline refresh --store mine --shard 1/4",
        "deepinfer baseline accept --store mine --all --reason 'torch 2.14'",
    )
)
def baseline() -> None:
    """Lock log-probabilities bit for bit, and review what moves. Every command takes --json.

    lock (first time), check (never writes), refresh (many machines; writes what differs for review), diff,
    accept or reject, history, fsck.
    """


for command in (
    check,
    lock,
    refresh,
    status,
    diff,
    accept,
    reject,
    history,
    fsck,
    prune,
    size,
    unlock,
    upgrade,
):
    baseline.add_command(command)
