"""Speculation and asynchrony on one device: speed of every policy, acceptance, calibration, same bytes.

Writes ``speculation_<device>.md`` and ``.json`` to ``--out``. On an H200:
``PYTHONPATH=.links python3 -P benchmarks/bench_speculation.py --device cuda --batch 1 --batch 64 --short``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from deepinfer.commands.bench_speculation import render, to_document
from deepinfer.engine.api import Device, EngineConfig, Profile
from deepinfer.eval.bench_speculation import SpeculationBench, run_speculation_bench


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=[device.value for device in Device], default=Device.CPU.value)
    parser.add_argument("--profile", choices=[profile.value for profile in Profile], default="strict")
    parser.add_argument("--batch", type=int, action="append", default=[])
    parser.add_argument("--short", action="store_true", help="two workloads, 32 tokens")
    parser.add_argument("--out", type=Path, default=Path("build"))
    given = parser.parse_args()
    device = Device(given.device)
    engine = EngineConfig(device=device, backend=device.kernel_set, profile=Profile(given.profile))
    bench = SpeculationBench(batches=tuple(sorted(set(given.batch))) or (1,))
    if given.short:
        bench = SpeculationBench(batches=bench.batches, workloads=("prose", "code"), new_tokens=32)
    result = run_speculation_bench(
        None, engine, bench, lambda what, done, total: print(f"[{done}/{total}] {what}", flush=True)
    )
    given.out.mkdir(parents=True, exist_ok=True)
    name = given.out / f"speculation_{device.value}"
    document = json.dumps(to_document(result), indent=2)
    name.with_suffix(".json").write_text(document + "\n", encoding="utf-8")
    text = f"# Speculation on {device.value}, profile {given.profile}\n\n```\n{render(result)}\n```\n"
    name.with_suffix(".md").write_text(text, encoding="utf-8")
    print(render(result))


if __name__ == "__main__":
    main()
