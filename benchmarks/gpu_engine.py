"""The engine on a CUDA device: are its strict bits the CPU's, does verify pass there, and how fast is it?

    .venv/bin/python -P benchmarks/gpu_engine.py --make      # what the CPU says: build/gpu_engine.npz
    python3 -P benchmarks/gpu_engine.py --out FOLDER --budget 200 [--only scores,logits] [--resume]

Stages run in the order of ``STAGES`` until the budget of seconds is spent; a stage that fails is recorded
with its traceback and the next one begins. ``gpu_engine.json`` and ``gpu_engine.md`` in FOLDER are written
after each stage; ``--resume`` keeps the finished stages that they hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_engine_bits import check_logits, check_recorded, check_scores, check_trace, make  # noqa: E402
from gpu_engine_promise import lock_fast, long_document, no_hidden_wait, random_traffic, run_verify  # noqa: E402
from gpu_engine_speed import idle_share, speeds  # noqa: E402
from gpu_held import held_speed  # noqa: E402
from gpu_records import attention_kernel, bundled_records, released_records  # noqa: E402
from gpu_scoring import scoring_host, scoring_ratio  # noqa: E402
from gpu_speculation import BATCHES, speculation_speed  # noqa: E402
from gpu_turn_kernels import turn_kernels  # noqa: E402
from gpu_turns import gaps, host_profile, same_bytes, scoring_kernels  # noqa: E402
from released_stack import released_gaps  # noqa: E402

from deepinfer.engine.api import Device, EngineConfig, Profile  # noqa: E402

EXPECTED = ROOT / "build" / "gpu_engine.npz"
Result = dict[str, Any]


def engine(profile: Profile, device: Device, **more: Any) -> EngineConfig:
    """The batch-invariant kernels of a device."""
    return EngineConfig(profile=profile, device=device, backend=device.kernel_set, **more)


class Report:
    """What was found so far, on disk after every stage."""

    def __init__(self, folder: Path, resume: bool) -> None:
        """``resume`` keeps the finished stages of an earlier run."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.stages: dict[str, Result] = {}
        if resume and (folder / "gpu_engine.json").exists():
            found = json.loads((folder / "gpu_engine.json").read_text())["stages"]
            self.stages = {name: result for name, result in found.items() if result.get("finished")}

    def add(self, name: str, result: Result) -> None:
        """Record a stage."""
        self.stages[name] = result
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
        head = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}
        text = json.dumps(head | {"stages": self.stages}, indent=1, default=str)
        (self.folder / "gpu_engine.json").write_text(text + "\n")
        lines = [f"# The engine on {device}, torch {torch.__version__}", ""]
        lines += ["| stage | verdict | seconds | what was seen |", "|---|---|---|---|"]
        lines += [self._row(name) for name in self.stages]
        for stage in self.stages.values():
            lines += ["", *stage.get("page", [])] if stage.get("page") else []
        (self.folder / "gpu_engine.md").write_text("\n".join(lines) + "\n")

    def _row(self, name: str) -> str:
        result = self.stages[name]
        seen = str(result.get("seen", "")).replace("\n", " ").replace("|", "/")
        return f"| {name} | {result['verdict']} | {result['seconds']:.1f} | {seen} |"

    def table(self) -> str:
        """One line a stage."""
        return "\n".join(
            f"{name:16} {r['verdict']:8} {r['seconds']:6.1f} s  {r.get('seen', '')}"
            for name, r in self.stages.items()
        )


Stage = Callable[[argparse.Namespace, float], Result]
"""Gets the options and the seconds it may take; says ``verdict`` and ``seen``."""


def _strict(options: argparse.Namespace) -> EngineConfig:
    return engine(Profile.STRICT, options.device)


def _fast(options: argparse.Namespace) -> EngineConfig:
    return engine(Profile.FAST, options.device)


def _speeds(options: argparse.Namespace, seconds: float) -> Result:
    fast, strict = _fast(options), _strict(options)
    variants = {
        "fast": fast,
        "library": replace(fast, backend="library"),
        "fast, synchronous": replace(fast, asynchronous=False),
        "strict": strict,
        "fast, not recorded": replace(fast, recorded_steps=False),
    }
    return speeds(dict(list(variants.items())[: 2 if options.short else None]))


RECORD_CHECKS = ("packing", "kernels", "chunks", "graphs", "baselines")
"""Of ``verify``: what reads packed records in ways of its own."""

STAGES: dict[str, Stage] = {
    "logits": lambda options, seconds: check_logits(_strict(options), options.expected),
    "graphs": lambda options, seconds: check_recorded(_strict(options), options.expected),
    "gaps": lambda options, seconds: gaps(_fast(options)),
    "gaps-released": lambda options, seconds: released_gaps(_fast(options)),
    "records": lambda options, seconds: bundled_records(_fast(options), options.short),
    "records-kernel": lambda options, seconds: attention_kernel(),
    "verify-records": lambda options, seconds: run_verify(_fast(options), "default", RECORD_CHECKS),
    "records-released": lambda options, seconds: released_records(_fast(options)),
    "idle-fast": lambda options, seconds: idle_share(_fast(options)),
    "turns-fast": lambda options, seconds: same_bytes(_fast(options), options.thorough),
    "turns": lambda options, seconds: same_bytes(_strict(options), options.thorough),
    "host": lambda options, seconds: host_profile(_fast(options)),
    "host-1": lambda options, seconds: host_profile(_fast(options), 1),
    "speculation": lambda options, seconds: speculation_speed(
        _fast(options),
        min(seconds, 70.0),
        options.short,
        options.batches,
        log=options.out / "turns.json" if options.log else None,
    ),
    "speculation-held": lambda options, seconds: held_speed(
        _fast(options), min(seconds, 90.0), options.batches
    ),
    "turn-kernels": lambda options, seconds: turn_kernels(_fast(options)),
    "waits": lambda options, seconds: no_hidden_wait(_strict(options)),
    "memory": lambda options, seconds: long_document(_strict(options)),
    "speed": _speeds,
    "scoring": lambda options, seconds: scoring_kernels(
        {"fast": _fast(options), "library": replace(_fast(options), backend="library")}
    ),
    "scoring-ratio": lambda options, seconds: scoring_ratio(_fast(options)),
    "scoring-host": lambda options, seconds: scoring_host(_fast(options)),
    "baselines": lambda options, seconds: lock_fast(_fast(options), options.out),
    "traffic": lambda options, seconds: random_traffic(_strict(options), min(seconds / 4, options.traffic)),
    "traffic-fast": lambda options, seconds: random_traffic(
        _fast(options), min(seconds / 4, options.traffic)
    ),
    "idle-sync": lambda options, seconds: idle_share(replace(_fast(options), asynchronous=False)),
    "idle": lambda options, seconds: idle_share(_strict(options)),
    "verify": lambda options, seconds: run_verify(_strict(options), "default"),
    "scores": lambda options, seconds: check_scores(_strict(options), options.expected, seconds),
    "trace": lambda options, seconds: check_trace(_strict(options), options.expected),
    "verify-fast": lambda options, seconds: run_verify(_fast(options), "default"),
    "verify-thorough": lambda options, seconds: run_verify(_strict(options), "thorough"),
}


def run(options: argparse.Namespace) -> int:
    """Run the stages; returns how many did not come out as they should."""
    report, started = Report(options.out, options.resume), time.perf_counter()
    for name, stage in STAGES.items():
        left = options.budget - (time.perf_counter() - started)
        is_wanted = name not in options.skip and (not options.only or name in options.only)
        if not is_wanted or name in report.stages or left < 5:
            continue
        begun = time.perf_counter()
        try:
            result = stage(options, left)
        except Exception as error:  # every stage must be heard
            seen = f"{type(error).__name__}: {error}"
            result = {"verdict": "ERROR", "seen": seen[:300], "traceback": traceback.format_exc()}
            (options.out / f"{name}.traceback.txt").write_text(result["traceback"])
        result["seconds"] = time.perf_counter() - begun
        result["finished"] = result["verdict"] != "ERROR"
        report.add(name, result)
        print(f"{name}: {result['verdict']} {result.get('seen', '')}", flush=True)
    print(report.table())
    return sum(result["verdict"] not in ("equal", "green", "measured") for result in report.stages.values())


def main() -> None:
    """Make what is expected, or look at the device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--make", action="store_true", help="write what the CPU kernels say")
    parser.add_argument("--expected", type=Path, default=EXPECTED)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_engine")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds in all")
    parser.add_argument("--traffic", type=float, default=25.0, help="seconds of random traffic")
    parser.add_argument("--thorough", action="store_true", help="turns also without asynchrony")
    parser.add_argument("--short", action="store_true", help="speed and speculation with fewer variants")
    parser.add_argument("--log", action="store_true", help="speculation writes all its steps to turns.json")
    parser.add_argument(
        "--batches",
        type=lambda text: [int(part) for part in text.split(",")],
        default=BATCHES,
        help="batch sizes of speculation",
    )
    parser.add_argument("--skip", type=lambda text: text.split(","), default=[], help="not these stages")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="these stages only")
    parser.add_argument("--device", type=Device, default=Device.CUDA, help="cpu checks the script itself")
    parser.add_argument("--resume", action="store_true", help="keep the finished stages that --out holds")
    options = parser.parse_args()
    if options.make:
        make(options.expected)
        return
    sys.exit(1 if run(options) else 0)


if __name__ == "__main__":
    main()
