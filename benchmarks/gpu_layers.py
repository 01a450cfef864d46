"""Fast device ops at the released shapes: errors, equal rows, times against their floors.

    python3 -P benchmarks/gpu_layers.py --out FOLDER [--budget 280] [--only experts,attention,gemm]

Needs torch and triton alone. Correctness comes first, a failure stops nothing, and results in ``--resume``
are not measured again. A floor is the larger of bytes over the copy speed and operations over the matrix
speed seen on the chip (``layers_common.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "helpers")]

import layers_attention  # noqa: E402
import layers_common  # noqa: E402
import layers_experts  # noqa: E402
import layers_fp8  # noqa: E402
import layers_gemm  # noqa: E402
import layers_hopper  # noqa: E402
import layers_ops  # noqa: E402
import layers_whole  # noqa: E402

SECTIONS = {
    "ops": layers_ops,
    "experts": layers_experts,
    "hopper": layers_hopper,
    "attention": layers_attention,
    "gemm": layers_gemm,
    "fp8": layers_fp8,
    "whole": layers_whole,
}


def write(out: Path, report: layers_common.Report) -> None:
    """Both files, as far as the run has come."""
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    (out / "gpu_layers.json").write_text(
        json.dumps(head | {"facts": report.facts, "failures": report.failures})
    )
    lines = [f"# Fast device ops on {head['device']}, torch {head['torch']}", ""]
    lines += layers_gemm.summary(report.facts)
    lines += [f"* {name}: {fact}" for name, fact in report.facts.items() if not name.startswith("gemm")]
    lines += ["", *(f"* FAILED {name}: {text}" for name, text in report.failures.items())]
    (out / "gpu_layers.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Compile, then measure section by section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("build/gpu_layers"))
    parser.add_argument("--resume", type=Path, help="results of an earlier run")
    parser.add_argument("--budget", type=float, default=280.0, help="seconds, compiling included")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, in this order")
    arguments = parser.parse_args()
    report = layers_common.Report(time.perf_counter() + arguments.budget)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.resume:
        report.facts = json.loads(arguments.resume.read_text())["facts"]
    names = arguments.only.split(",")
    jobs = [job for name in names for job in SECTIONS[name].jobs()]
    errors = layers_common.compile_ahead(jobs, 0.45 * arguments.budget)
    report.failures["compile"] = "\n".join(errors)
    for name in names:
        try:
            SECTIONS[name].run(report)
        except Exception:
            report.failures[name] = traceback.format_exc()
            print(report.failures[name], flush=True)
        write(arguments.out, report)
        torch.cuda.empty_cache()
        print(f"-- {name} done, {report.left():.0f} s left", flush=True)
    print((arguments.out / "gpu_layers.md").read_text()[:6000])


if __name__ == "__main__":
    main()
