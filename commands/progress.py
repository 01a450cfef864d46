"""Progress on stderr: a bar for a person, lines for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done, total)``."""


@contextmanager
def progress_display() -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal, otherwise a line when the work changes or every 5 s."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        return

    last_what, last_time_s = "", 0.0

    def line(what: str, done: int, total: int) -> None:
        nonlocal last_what, last_time_s
        now_s = time.monotonic()
        what_changed = what.partition(": ")[0] != last_what.partition(": ")[0]  # details come every 5 s
        if what_changed or done == total or now_s - last_time_s >= 5:
            print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True)
            last_what, last_time_s = what, now_s

    yield line
