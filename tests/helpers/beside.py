"""Scripts that run beside the suite: Triton's interpreter takes minutes that another core can spend.

A test module names its scripts in a list ``BESIDE``; they start, one after another, when the tests are
collected, and ``answer`` waits for what one of them prints. Where the tests themselves run in several
processes no core is free, and each of them would start all scripts: there one begins when it is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

HELPERS = Path(__file__).parent
Done = subprocess.CompletedProcess[str]


def _run(script: str) -> Done:
    command = [sys.executable, str(HELPERS / script)]
    # behind the tests in the queue for a core: some of these measure time
    return subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=lambda: os.nice(10) and None
    )


class Beside:
    """One queue of scripts.

    Args:
        scripts: file names in this folder that start now, in the order they run; each prints JSON.
    """

    def __init__(self, scripts: Iterable[str]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._done: dict[str, Future[Done]] = {}
        for script in scripts:
            self._start(script)

    def _start(self, script: str) -> Future[Done]:
        if script not in self._done:
            self._done[script] = self._pool.submit(_run, script)
        return self._done[script]

    def answer(self, script: str) -> Any:
        """What a script printed; waits for it."""
        done = self._start(script).result()
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def close(self) -> None:
        """Start no further script."""
        self._pool.shutdown(wait=False, cancel_futures=True)
