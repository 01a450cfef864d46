"""A disk that fails, ends or pauses its process at a chosen step, and samples to write."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.baselines.canonical import Sample
from deepinfer.baselines.disk import Disk
from deepinfer.baselines.key import Key

ERRORS = ("ENOSPC", "EIO", "EROFS", "ENOLCK", "ESTALE")


class FaultyDisk(Disk):
    """Counts its steps and does something at the ``at``-th, the first being 1."""

    def __init__(self, at: int = 0, do: str = "") -> None:
        self.at, self.do = at, do
        self.steps: list[str] = []

    def before(self, step: str, path: Path) -> None:
        self.steps.append(step)
        if len(self.steps) != self.at:
            return
        if self.do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.do:
            code = getattr(errno, self.do)
            raise OSError(code, os.strerror(code), str(path))


def make_key(index: int) -> Key:
    return Key.of(f"doc-{index}", workload="texts", model="tiny", platform="portable")


def make_sample(seed: int, length: int = 12) -> Sample:
    generator = np.random.default_rng(seed)
    return Sample(
        token_ids=generator.integers(0, 4096, length).astype(np.int32),
        logprobs=-generator.random(length).astype(np.float32),
    )


def make_samples(seed: int, keys: Sequence[int]) -> list[tuple[Key, Sample]]:
    return [(make_key(index), make_sample(seed * 1000 + index)) for index in keys]


def digests(table: dict[Any, dict[str, Any]]) -> dict[str, str]:
    """Key text -> digest of a table of the state."""
    return {
        f"{scope}/{sample}": entry.digest
        for scope, samples in table.items()
        for sample, entry in samples.items()
    }
