"""Random traffic with speculation and asynchrony against each request alone, in as many processes as cores.

PYTHONPATH=.links:tests/helpers python3 -P benchmarks/soak_speculation.py --requests 2000 --out build

On a device (``--device cuda``) the crowd runs from recordings and each request alone does not. Every other
four traces are then of the bundled model with its own drafts, planned where the step is; the others' drafts
are right by a die, which is the host's.

Traces ``seed``, ``seed + 1``, ... until so many requests were played or ``--seconds`` have gone; counts in
one file ``soak_<device>_<profile>_<seed>.json``, written anew after every trace. Exit status 1 if a byte
differs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from soak_play import Tally, soaked

import deepinfer
from deepinfer.commands.options import engine_config
from deepinfer.engine.bundled import bundled_model_dir
from deepinfer.engine.choices import Device, Profile
from deepinfer.engine.llm import LLM

ROOT = Path(deepinfer.__file__).parent


@dataclass(frozen=True)
class Place:
    """Where traces are played."""

    device: Device
    profile: Profile

    @property
    def on_device(self) -> bool:
        """Not on a CPU, where nothing is recorded."""
        return self.device is not Device.CPU


@lru_cache(maxsize=2)
def model(place: Place, bundled: bool) -> LLM:
    """The bundled model or the small reference checkpoint, once a process of one thread."""
    small = ROOT / "tests" / "data" / "golden" / "ckpt_A_quantized"
    config = engine_config(place.profile.value, place.device.value)
    return LLM(bundled_model_dir() if bundled else small, replace(config, num_threads=1))


def one(seed: int, place: Place) -> Tally:
    """One trace in a process of the pool."""
    own = place.on_device and seed // 4 % 2 == 1  # prefill modes go by the rest
    return soaked(model(place, own), seed, recorded=place.on_device, own_drafts=own)


def tallies(first: int, requests: int, processes: int, ends_at_s: float, place: Place) -> Iterator[Tally]:
    """Traces from ``first`` on as they are done, at least as many as have ``requests`` requests."""
    play = partial(one, place=place)
    # compiles what is not in the cache before anybody else does; on a device there is so much of it that
    # processes compile side by side, even if some of it twice
    begun = () if place.on_device else (first,)
    for seed in begun:
        yield play(seed)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:  # ended with whatever still runs
        done = pool.imap_unordered(
            play, (seed for seed in range(first, first + requests) if seed not in begun)
        )
        while True:
            try:
                yield done.next(timeout=max(0.1, ends_at_s - time.monotonic()))
            except (StopIteration, multiprocessing.TimeoutError):
                return


def main() -> int:
    """Play, count, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=5000, help="first trace")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--device", type=Device, choices=list(Device), default=Device.CPU)
    parser.add_argument("--profile", type=Profile, choices=list(Profile), default=Profile.STRICT)
    parser.add_argument("--out", type=Path, default=Path("build"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"soak_{given.device}_{given.profile}_{given.seed}.json"
    place = Place(given.device, given.profile)
    began_s, total = time.monotonic(), Tally()
    for found in tallies(given.seed, given.requests, given.processes, began_s + given.seconds, place):
        total.add(found)
        document = {**asdict(total), "first_seed": given.seed, "processes": given.processes}
        document["elapsed_s"] = round(time.monotonic() - began_s, 1)
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(f"{document['elapsed_s']} s: {total.traces} traces, {total.requests} requests", flush=True)
        if total.requests >= given.requests:
            break
    print(file.read_text(encoding="utf-8"))
    return int(bool(total.failures or total.differing_records or total.differing_logits_rows))


if __name__ == "__main__":
    sys.exit(main())
