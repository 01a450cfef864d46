"""What code for chips that are not at hand can show on one that is; needs torch and triton alone.

    PYTHONPATH=.links python3 -P benchmarks/gpu_portability.py --out FOLDER

Logarithms without float64 against those with it, over every float32; router, log-probabilities and sampling
both ways; experts for native FP4 products, whose operands Triton widens here, against float64 and in other
company. Results go to ``gpu_portability.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import triton.language as tl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import fast_references as reference  # noqa: E402
from strict_cases import Draws, all_cases  # noqa: E402

from deepinfer.kernels.gpu import elementary, narrow_log  # noqa: E402
from deepinfer.kernels.gpu.backend import GpuOps  # noqa: E402
from deepinfer.kernels.gpu.launching import Ptr, kernel, launch  # noqa: E402
from deepinfer.kernels.gpu.native_experts import NativeExperts, routed  # noqa: E402
from deepinfer.kernels.gpu.native_weights import pack_native, stacked  # noqa: E402

PLACE = torch.device("cuda")
PROGRAMS, TILE = 1 << 16, 1024
"""Programs over all bit patterns, and values that each looks at together."""


@kernel
def _differences_kernel(
    counts: Ptr, LISTED: tl.constexpr, SOFTPLUS: tl.constexpr, PART: tl.constexpr, TILE: tl.constexpr
) -> None:
    """Bit patterns of this program at which both ways differ; NaN is NaN."""
    first = tl.program_id(0).to(tl.int64) * PART
    different = tl.zeros((TILE,), tl.int32)
    for start in range(0, PART, TILE):
        pattern = (first + start + tl.arange(0, TILE)).to(tl.int32)
        x = elementary.float_of(pattern)
        if SOFTPLUS:
            wanted, found = elementary.softplus(x), narrow_log.softplus(x)
        elif LISTED:
            wanted, found = elementary.log(x), narrow_log.log(x)
        else:  # the control: without the list of exceptions, over normal positive numbers
            mantissa, power = narrow_log._reduced(x)
            wanted = elementary.log(x)
            found = narrow_log._log_of(mantissa, tl.zeros((TILE,), tl.float32), power)
            usable = (x >= 1.1754944e-38) & (x < float("inf"))
            wanted, found = tl.where(usable, wanted, 0.0), tl.where(usable, found, 0.0)
        unequal = elementary.bits_of(wanted) != elementary.bits_of(found)
        different += (unequal & ((wanted == wanted) | (found == found))).to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(different, axis=0))


def differences(listed: bool, softplus: bool) -> int:
    """Over all float32."""
    counts = torch.zeros(PROGRAMS, dtype=torch.int32, device=PLACE)
    constants = {"LISTED": listed, "SOFTPLUS": softplus, "PART": (1 << 32) // PROGRAMS, "TILE": TILE}
    launch(_differences_kernel, (PROGRAMS,), counts, **constants)
    return int(counts.sum())


class NarrowOps(GpuOps):
    """Profile strict with logarithms that use no float64."""

    fp64 = False


def ops_without_float64() -> dict[str, bool]:
    """Whether bytes are the same, by case."""
    both = GpuOps(False, True, PLACE), NarrowOps(False, True, PLACE)
    found = {}
    for case in all_cases():
        if case.name.startswith(("route", "logprobs", "sample")):
            one, other = (case.run(ops, Draws(case.name, "cuda")) for ops in both)
            pairs = zip(one, other, strict=True)
            found[case.name] = all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)
    return found


def native(width: int, inner: int, num_experts: int, rows: int) -> dict[str, float]:
    """Error against float64, and values of single rows that differ from those in company."""
    generator = torch.Generator(PLACE).manual_seed(3)
    shapes = (num_experts, inner, width), (num_experts, inner, width), (num_experts, width, inner)
    codes = [reference.random_mxfp4(generator, *shape) for shape in shapes]
    gate, up, down = (pack_native(*one) for one in codes)
    packed = NativeExperts(stacked(gate, up), down)
    x = torch.randn(rows, width, generator=generator, device=PLACE).to(torch.bfloat16)
    scores = torch.rand(rows, num_experts, generator=generator, device=PLACE)
    ids = scores.topk(2).indices.sort().values
    shares = torch.rand(rows, 2, generator=generator, device=PLACE)
    found = routed(x, ids, shares, packed, 10.0)
    unequal = 0
    for row in range(0, rows, max(1, rows // 16)):
        part = slice(row, row + 1)
        alone = routed(x[part], ids[part], shares[part], packed, 10.0)
        unequal += int((alone != found[2 * row : 2 * row + 2]).sum())
    few = slice(0, 16)
    plain = [reference.decode_mxfp4(*one) for one in codes]
    wanted = reference.expert_outputs(x[few], ids[few], shares[few], *plain, 10.0)[1]
    return {"error": reference.relative(found[:32], wanted), "unequal": unequal}


def main() -> None:
    """Write what was found after every part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, object] = {"device": torch.cuda.get_device_name()}
    parts = {
        "log_different": lambda: differences(True, False),
        "softplus_different": lambda: differences(True, True),
        "log_different_without_the_list": lambda: differences(False, False),
        "ops_without_float64": ops_without_float64,
        "native_small": lambda: native(160, 96, 5, 40),
        "native_released_widths": lambda: native(5120, 2304, 8, 64),
    }
    for name, part in parts.items():
        start = time.perf_counter()
        try:
            found[name] = part()
        except Exception as error:  # the next part may still say something
            found[name] = f"{type(error).__name__}: {error}"
        print(name, found[name], f"{time.perf_counter() - start:.1f} s", flush=True)
        (folder / "gpu_portability.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
