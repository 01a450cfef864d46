"""Runs one trial in a process of its own, which reads JSON and writes arrays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.errors import DeepInferError
from deepinfer.verify.case import Answer, Place, Trial, as_fields, refused, trial_from_dict

HASH_SEED = "4242"
"""Of the other process; this one has whatever it was started with, most often a random one."""
TIME_LIMIT_S = 600


class Elsewhere:
    """A trial that runs in a fresh process from the moment this object is made."""

    def __init__(self, model_dir: Path, trial: Trial, engine: EngineConfig, fault: str | None = None) -> None:
        """Start it; ``fault`` is a seeded fault to activate there, for the self-test."""
        order = {
            "model": str(model_dir),
            "engine": asdict(engine),
            "trial": {**asdict(trial), "place": Place.HERE},
            "fault": fault,
        }
        # Files, not pipes: a pipe that is full would hold up whoever writes until the other side reads.
        self._answer, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(order).encode())
            stdin.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "deepinfer.verify.child"],
                stdin=stdin,
                stdout=self._answer,
                stderr=self._errors,
                env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
            )

    def answer(self) -> Answer:
        """Wait for its answer.

        Raises:
            DeepInferError: the process could not run, or took longer than ``TIME_LIMIT_S``.
        """
        with self._answer, self._errors:
            try:
                status = self._process.wait(TIME_LIMIT_S)
            except subprocess.TimeoutExpired as error:
                raise DeepInferError(f"another process did not answer in {TIME_LIMIT_S} s") from error
            finally:
                self.stop()
            self._answer.seek(0)
            self._errors.seek(0)
            if status != 0:
                lines = self._errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
                raise DeepInferError(f"another process could not run the case: {lines[-1]}")
            return read_answer(self._answer)

    def stop(self) -> None:
        """End the process if it is still running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def write_answer(answer: Answer, file: BinaryIO) -> None:
    """Write an answer as numpy's own archive."""
    arrays: dict[str, Any] = {
        "token_ids": answer.token_ids,
        "positions": answer.positions,
        "logits": answer.logits,
        "counts": np.array(
            [answer.num_hit_tokens, answer.num_preemptions, answer.num_accepted, answer.num_ahead], np.int64
        ),
        "failure": np.array(answer.failure or ""),
    }
    arrays |= {f"by_position/{name}": array for name, array in answer.by_position.items()}
    arrays |= {f"whole/{name}": array for name, array in answer.whole.items()}
    np.savez(file, **arrays)


def read_answer(file: BinaryIO) -> Answer:
    """Read what ``write_answer`` wrote."""
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    failure = str(arrays["failure"])
    if failure:
        return refused(failure)

    def below(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}

    return Answer(
        token_ids=arrays["token_ids"],
        positions=arrays["positions"],
        logits=arrays["logits"],
        by_position=below("by_position/"),
        whole=below("whole/"),
        num_hit_tokens=int(arrays["counts"][0]),
        num_preemptions=int(arrays["counts"][1]),
        num_accepted=int(arrays["counts"][2]),
        num_ahead=int(arrays["counts"][3]),
    )


def seeded(fault: str | None) -> AbstractContextManager[None]:
    """The fault of that name in force, if one is asked for."""
    if fault is None:
        return nullcontext()
    from deepinfer.verify.faults.edit import edited
    from deepinfer.verify.self_test import FAULTS

    return edited(*next(known.edits for known in FAULTS if known.name == fault))


def main() -> None:
    """Answer the order on stdin."""
    from deepinfer.verify.live import open_context

    order = json.load(sys.stdin)
    context = open_context(Path(order["model"]), EngineConfig(**as_fields(order["engine"])))
    with seeded(order["fault"]):
        answer = context.trials.run(trial_from_dict(order["trial"]))
    write_answer(answer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
