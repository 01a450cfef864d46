"""One of several processes that refresh overlapping keys of one store and write down what they did and saw.

    hammer.py STORE LOG NUMBER REFRESHES [--host NAME] [--no-flock] [--stale SECONDS]

``--host`` is a machine of its own: another host name, and a client cache that shows names and contents late.
``--no-flock`` is a mount whose kernel locks exclude nobody on other machines.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import random
import socket
import time
from pathlib import Path
from typing import Any

from remote_mount import RemoteMount
from store_faults import make_key, make_sample

from deepinfer.baselines.committing import Author
from deepinfer.baselines.disk import Disk
from deepinfer.baselines.store import Baselines, LockOptions

NUM_KEYS = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("refreshes", type=int)
    parser.add_argument("--host")
    parser.add_argument("--no-flock", action="store_true")
    parser.add_argument("--stale", type=float, default=0.0)
    given = parser.parse_args()
    if given.host:
        socket.gethostname = lambda: given.host
    if given.no_flock:
        fcntl.flock = lambda descriptor, operation: None  # always says yes
    disk = RemoteMount(given.host, given.stale) if given.host else Disk()
    store = Baselines(given.store, options=LockOptions(timeout_s=300), disk=disk)
    writer = store.writer(Author(reason=f"process {given.number}"))
    draw = random.Random(given.number)
    events: list[dict[str, Any]] = []
    for turn in range(given.refreshes):
        chosen = draw.sample(range(NUM_KEYS), draw.randint(1, 3))
        samples = [
            (make_key(i), make_sample(given.number * 1_000_000 + turn * 100 + i, length=6)) for i in chosen
        ]
        began = time.monotonic()
        changes = writer.refresh(samples)
        ended = time.monotonic()
        assert len(changes) == len(samples)
        events += [
            {"key": key.sample, "began": began, "ended": ended, "kind": "write", "value": sample.digest()}
            for key, sample in samples
        ]
        began = time.monotonic()
        state = store.state()
        ended = time.monotonic()
        for index in draw.sample(range(NUM_KEYS), 2):
            entry = state.pending_entry(make_key(index))
            value = entry and entry.digest
            events.append(
                {"key": f"doc-{index}", "began": began, "ended": ended, "kind": "read", "value": value}
            )
    given.log.write_text(json.dumps(events))


main()
