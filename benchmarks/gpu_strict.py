"""Does profile strict on a CUDA device give the bytes of the CPU? Every op, in one call.

    .venv/bin/python -P benchmarks/gpu_strict.py --make        # anywhere: expected bytes, build/gpu_cases.npz
    python3 -P benchmarks/gpu_strict.py --out FOLDER           # on the device; needs torch and triton alone

Inputs are drawn again on the device and compared by digest. A small output is kept whole, a large one as a
digest and every n-th value. Nothing stops at a failure; results go to ``gpu_strict.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from strict_cases import Case, Draws, all_cases  # noqa: E402

from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.interface import Ops  # noqa: E402

CASES = ROOT / "build" / "gpu_cases.npz"
KEPT = 1 << 14
Array = npt.NDArray[Any]


def flat(x: torch.Tensor) -> Array:
    """All values as integers of their own width: equality of these is equality of bytes."""
    values = x.detach().cpu().contiguous().numpy().reshape(-1)
    return values.view({1: np.uint8, 4: np.uint32, 8: np.uint64}[values.itemsize])


def digest(values: Array) -> str:
    """SHA-256 (hex) of the bytes."""
    return hashlib.sha256(values.tobytes()).hexdigest()


def sampled(values: Array) -> Array:
    """At most ``KEPT`` values, evenly spread."""
    return values[:: max(1, -(-len(values) // KEPT))]


def make(path: Path) -> None:
    """Write the expected bytes of every case."""
    ops, arrays, facts = select_ops("cpu", bf16=False), dict[str, Array](), dict[str, Any]()
    for case in all_cases():
        draws = Draws(case.name)
        outputs = [flat(x) for x in case.run(ops, draws)]
        facts[case.name] = {"inputs": draws.digest, "outputs": [digest(x) for x in outputs]}
        for number, values in enumerate(outputs):
            arrays[f"{case.name}/{number}"] = sampled(values)
        print(f"made {case.name}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB")


def compare(case: Case, ops: Ops, place: str, facts: dict[str, Any], arrays: Any) -> dict[str, Any]:
    """Run a case twice on the device; what differs from the CPU, and how long the second run took."""
    draws = Draws(case.name, place)
    first = [flat(x) for x in case.run(ops, draws)]
    if draws.digest != facts["inputs"]:
        return {"equal": False, "detail": "the inputs differ from those of the CPU: nothing was compared"}
    started = time.perf_counter()
    again = [flat(x) for x in case.run(ops, Draws(case.name, place))]
    found: dict[str, Any] = {"equal": True, "detail": "", "second_run_s": time.perf_counter() - started}
    for number, (values, wanted) in enumerate(zip(first, facts["outputs"], strict=True)):
        if not np.array_equal(values, again[number]):
            found |= {"equal": False, "detail": f"output {number} differs between two runs on the device"}
        elif digest(values) != wanted:
            some, expected = sampled(values), arrays[f"{case.name}/{number}"]
            wrong = np.nonzero(some != expected)[0] if len(some) == len(expected) else np.arange(len(some))
            detail = f"output {number}: {len(wrong)} of {len(some)} compared values differ"
            if len(wrong) and len(some) == len(expected):
                at = int(wrong[0])
                detail += f"; first at {at}: device {some[at]:#x}, CPU {expected[at]:#x}"
            return found | {"equal": False, "detail": detail}
    return found


def is_lost() -> bool:
    """Whether a kernel has broken the device context: nothing in this process can run on it any more."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def check(out: Path, path: Path, kernel_set: str, only: str, resume: bool) -> int:
    """Compare every case; returns the number that differ. A broken context goes on in a fresh process."""
    arrays = np.load(path)
    facts = json.loads(arrays["facts"].tobytes())
    ops, place = select_ops(kernel_set, bf16=False), "cpu" if kernel_set == "cpu" else "cuda"
    results: dict[str, dict[str, Any]] = {}
    if resume:
        results = json.loads((out / "gpu_strict.json").read_text())["cases"]
    for case in all_cases():
        if only not in case.name or case.name in results:
            continue
        started = time.perf_counter()
        try:
            result = compare(case, ops, place, facts[case.name], arrays)
        except Exception:  # the report must name every case
            result = {"equal": False, "detail": "error: " + traceback.format_exc(limit=-3)}
        results[case.name] = result | {"wall_s": time.perf_counter() - started}
        print(f"{'equal ' if result['equal'] else 'DIFFER'} {case.name}: {result['detail']}", flush=True)
        write(out, results)
        if is_lost():
            again = [a for a in sys.argv if a != "--resume"]
            os.execv(sys.executable, [sys.executable, "-P", *again, "--resume"])
    return sum(not result["equal"] for result in results.values())


def write(out: Path, results: dict[str, dict[str, Any]]) -> None:
    """Both report files, as far as the run has come."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    head = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu_strict.json").write_text(json.dumps(head | {"cases": results}, indent=1) + "\n")
    lines = [f"# Profile strict on {device} against the CPU, torch {torch.__version__}", ""]
    lines += ["| case | bytes | second run, s | detail |", "|---|---|---|---|"]
    for name, result in results.items():
        detail = result["detail"].splitlines()[-1] if result["detail"] else ""
        seconds = f"{result['second_run_s']:.4f}" if "second_run_s" in result else ""
        lines.append(f"| {name} | {'equal' if result['equal'] else 'DIFFER'} | {seconds} | {detail} |")
    (out / "gpu_strict.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Make the cases, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--make", action="store_true", help="write the expected bytes with the CPU kernels")
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_strict")
    parser.add_argument("--kernel-set", default="triton", help="cpu checks the script itself")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--resume", action="store_true", help="keep the results that --out holds")
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.cases)
        return
    num_wrong = check(arguments.out, arguments.cases, arguments.kernel_set, arguments.only, arguments.resume)
    print(f"{num_wrong} cases differ")
    sys.exit(1 if num_wrong else 0)


if __name__ == "__main__":
    main()
