"""What the host takes for a turn, without any device: turns are answered at once, with drawn tokens.

    .venv/bin/python -P benchmarks/host_turns.py [--batch 64] [--profile]

The engine loop, scheduler, policy and tables are real; the model is loaded and never run. Prints milliseconds
a turn by policy, the least of some rounds, in which the policies take turns. ``paused`` is ``confidence`` in
a pause that does not end: it should cost what ``off`` does.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch

from deepinfer.engine.api import EngineConfig, GenerateRequest, SamplingParams
from deepinfer.engine.asynchrony import Queue
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.confidence import ConfidenceDrafts
from deepinfer.engine.speculation.options import Speculation
from deepinfer.engine.turns.outcome import Outcome
from deepinfer.engine.turns.recordings import Played, TurnRecordings
from deepinfer.engine.turns.table import TurnShape
from deepinfer.kernels.turn_operands import DRAFTS, FROM_DEVICE, LIMIT, SLOT, START

_PAUSED = "paused"
_POLICIES = ("off", _PAUSED, "fixed:2", "fixed", "confidence")


class Answered(TurnRecordings):
    """Answers turns without a device: a draft is accepted half of the time."""

    def __init__(self, turn: Any) -> None:
        """Every shape counts as recorded."""
        super().__init__(turn)
        self._draw = np.random.default_rng(0)
        self._start = np.zeros(turn.caches.shape.num_slots, np.int64)

    def shape_of(self, wanted: TurnShape) -> TurnShape:
        """See ``TurnRecordings``."""
        return wanted

    def play(self, shape: TurnShape, table: np.ndarray) -> Played:
        """See ``TurnRecordings``."""
        real = table[:, SLOT] >= 0
        slots = table[real, SLOT]
        start = np.where(table[real, START] == FROM_DEVICE, self._start[slots], table[real, START])
        drafts = table[real, DRAFTS]
        if shape.is_shared_out:
            drafts = np.minimum(drafts, shape.num_drafts // len(drafts))
        rows = np.maximum(np.minimum(drafts + 1, table[real, LIMIT] - start), 0)
        right = self._draw.random((len(slots), shape.width)) < 0.5
        accepted = np.minimum(np.cumprod(right, 1).sum(1), np.maximum(rows - 1, 0))
        self._start[slots] = start + accepted + 1
        pad = len(table) - len(slots)
        shown = (len(table), shape.num_drafted)
        outcome = Outcome(
            ids=self._draw.integers(4, 500, shape.num_rows),
            start=np.pad(start, (0, pad)),
            count=np.pad(rows, (0, pad)),
            accepted=np.pad(accepted, (0, pad)),
            drafts=self._draw.integers(4, 500, shown),
            raw=np.full(shape.num_rows, -1.0, np.float32),
            processed=np.full(shape.num_rows, -1.0, np.float32),
            confidences=np.full(shown, 0.5, np.float32),
        )
        return Played(torch.empty(shape.num_rows, 1), lambda: outcome, True)


def core_of(base: LLM, policy: str) -> EngineCore:
    """An asynchronous core whose turns are answered at once."""
    text = "confidence" if policy == _PAUSED else policy
    config = replace(base.config, speculation=Speculation.from_text(text), asynchronous=True)
    core = base.with_config(config)._core
    turns = core.launcher.turns
    assert turns is not None
    core._runner = Queue()
    core.launcher.turns = replace(turns, recordings=Answered(turns.turn))
    return core


def pause(core: EngineCore, batch: int) -> None:
    """Stop drafting with so many sequences, for longer than anybody measures."""
    assert core.speculation is not None
    policy = core.speculation.policy
    assert isinstance(policy, ConfidenceDrafts)
    case = policy._pauses._case(batch)
    case.pause()
    case.left, case.num_paused = 10**9, 10**3


def decode(core: EngineCore, batch: int, steps: int) -> float:
    """Processor seconds of a step with ``batch`` sequences."""
    params = SamplingParams(temperature=0.0, max_tokens=6 * steps + 60, ignore_eos=True)
    for i in range(batch):
        assert core.add(GenerateRequest(request_id=str(i), token_ids=(0, 5, 6), params=params)) is None
    for _ in range(12):
        core.step()
    started = time.thread_time()
    for _ in range(steps):
        core.step()
    taken = (time.thread_time() - started) / steps
    for i in range(batch):
        core.abort(str(i))
    return taken


def main() -> None:
    """Print a line a policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policies", default=",".join(_POLICIES), help="which, comma-separated")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by own time")
    options = parser.parse_args()
    base = LLM(None, EngineConfig(recorded_steps=True, prefix_caching=False, max_batch_tokens=8192))
    cores = {policy: core_of(base, policy) for policy in options.policies.split(",")}
    for policy, core in cores.items():
        if core.speculation is not None:
            core.speculation.clock = count(0.0, 1e-3).__next__  # equal steps: drafts pay
        if policy == _PAUSED:
            pause(core, options.batch)
    times = [
        {policy: decode(core, options.batch, options.steps) for policy, core in cores.items()}
        for _ in range(options.rounds)
    ]
    for policy, core in cores.items():
        least = min(taken[policy] for taken in times)
        print(f"{policy:12} {least * 1e3:.3f} ms a turn of {options.batch}", flush=True)
        if options.profile:
            profile = cProfile.Profile()
            profile.enable()
            decode(core, options.batch, options.steps)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
