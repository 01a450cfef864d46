"""Compile the kernels of both profiles for one kind of chip; prints JSON.

The argument is the compute capability, such as 90. ``strict`` and ``fast``: counts of PTX instructions by
kernel; ``shared``: most bytes of shared memory by kernel; ``left_out``: kernels of ``kernels.gpu`` that
nothing here launched, those for warp groups aside. Launches are chosen as on that chip and give no results.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import turn_cases
from attention_cases import Cases
from compile_only import compile_only
from strict_cases import Draws, all_cases

INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+ )?([a-z][\w.:]*)", re.MULTILINE)
PLACE = torch.device("cpu")
ROWS, HEADS, GROUPS, PER = 4, 64, 512, 128


def zeros(*shape: int, kind: torch.dtype = torch.int32) -> torch.Tensor:
    """Indices that are always inside."""
    return torch.zeros(*shape, dtype=kind)


def records(kind: str, width: int, codes: int, scales: int, per: int, groups: int) -> Any:
    """Records that nobody has written."""
    from deepinfer.kernels.gpu.records import bind_records

    whole = torch.empty(groups, per, codes + scales, dtype=torch.uint8)
    return bind_records(kind, width, whole[..., :codes], whole[..., codes:])


def attention(width: int) -> None:
    """Rows that attend to a window and to chosen entries, as layers hand them over."""
    from deepinfer.kernels.gpu import record_ops
    from deepinfer.kernels.gpu.gemm import Workspace
    from deepinfer.kernels.operands import PagedRecords

    window = records("mxfp8", width, width, width // 32, 1, 256)
    table = zeros(ROWS, GROUPS)
    pages = PagedRecords(records("fp4", width, width // 2, width // 16, PER, GROUPS), table, PER)
    q, sink = torch.empty(ROWS, HEADS, width), torch.empty(HEADS)
    workspace = Workspace.on(PLACE, 1 << 22, 1 << 12)
    record_ops.attend(q, window, zeros(ROWS, 128), pages, zeros(ROWS, 512), sink, workspace)


def sublayers(ops: Any) -> None:
    """Attention from input to output: rotations within its launch, or beside those of the released width."""
    for packed, width in ((False, 96), (True, 96), (False, 512), (True, 512)):
        Cases(ops, 0).attend(packed, ROWS, HEADS, width)


def index(length: int) -> None:
    """Selection over keys of the released shape: all of them, and those of candidate blocks."""
    from deepinfer.kernels.gpu import record_ops
    from deepinfer.kernels.operands import PagedRecords

    pages = PagedRecords(records("mxfp4", 128, 64, 4, PER, GROUPS), zeros(ROWS, length // PER), PER)
    q, w = torch.empty(ROWS, 32, 128), torch.empty(ROWS, 32)
    counts = zeros(ROWS, kind=torch.int64)
    record_ops.select(q, w, pages, counts, length, 512, 2048, 8)
    record_ops.select_within(q, w, pages, counts, zeros(ROWS, 2048), 8, 512)


def experts(ops: Any, num_rows: int) -> None:
    """Routed experts whose weights MXFP4 holds: few pairs an expert, or many."""
    weights = (torch.ones(128, 256), torch.ones(128, 256), torch.ones(256, 128))
    routed, shared = ops.pack_experts(4, lambda _: weights), ops.pack_experts(1, lambda _: weights)
    ids = zeros(num_rows, 2, kind=torch.int64)
    ops.moe(torch.empty(num_rows, 256), ids, torch.empty(num_rows, 2), routed, shared, 10.0)


def products(ops: Any) -> None:
    """Widths with a plan of their own and without, in every bucket of rows."""
    for outputs, inputs in ((512, 5120), (1280, 5120), (40, 2048), (72, 1024), (64, 256), (40, 96)):
        weight = ops.pack_linear(torch.ones(outputs, inputs))
        for num_rows in (1, 40, 100, 200, 300, 600, 2100):
            ops.linear(torch.empty(num_rows, inputs), weight)


def widened() -> None:
    """FP8 weights in bfloat16, for many rows."""
    from deepinfer.kernels.gpu.fp8_weights import exact_fp8, pack_fp8, widen

    exact = exact_fp8(torch.ones(128, 256))
    assert exact is not None
    widen(pack_fp8(*exact), torch.empty(1, 128, 256, dtype=torch.bfloat16))


def drafts(ops: Any) -> None:
    """Rows of blocks, and their tokens."""
    from deepinfer.kernels.draft_operands import BlockShape

    shape = BlockShape(size=5, window=12, noise_token_id=3, num_streams=4)
    three = zeros(3, kind=torch.int64)
    ops.draft_rows(three, three, three, three, torch.empty(70, 40), shape, 17)
    head, sure = ops.pack_linear(torch.ones(70, 12)), ops.pack_linear(torch.ones(1, 52))
    ops.markov_decode(three, torch.empty(3, 5, 40), torch.empty(3, 5, 70), torch.empty(70, 12), head, sure)


def first_rows(ops: Any) -> None:
    """What a step begins with, pairs of halves, and confidences."""
    from deepinfer.kernels.gpu.pointwise import confidences

    two, rows, kept = zeros(2, kind=torch.int64), torch.empty(2, 64), torch.empty(5, 64)
    ops.first_streams(torch.empty(70, 64), two, 4)
    windows, tables = zeros(2, 16, kind=torch.int64), zeros(2, 8, kind=torch.int64)
    ops.window_places(two, two, windows, tables, two)
    ops.pool_waiting(rows, rows, kept, kept, zeros(2, 2, kind=torch.int64), two, two)
    confidences(rows, 60.0)


def inputs_of_layers() -> None:
    """Latents, and what sublayers begin with."""
    from deepinfer.kernels.gpu import latents, row_sums, site_rows, site_turns
    from deepinfer.kernels.operands import Rotary, SiteInput

    table = torch.empty(64, 16)
    latents.latent(torch.empty(4, 64), torch.empty(64), 1e-6, Rotary(table, table, zeros(4).long()), True)
    site_rows.site_row(torch.empty(4, 4, 256), torch.empty(4, 4), torch.empty(256), 1e-6, True)
    row_sums.square_sums(torch.empty(4, 1024))
    streams, row, mixes = torch.empty(4, 4, 256), torch.empty(4, 256), torch.empty(4, 4)
    site_rows.collapsed_norm(streams, mixes, torch.empty(256), 1e-6, True)
    site = SiteInput(row, lambda: (mixes, mixes, torch.empty(4, 4, 4)))
    for added in (row, site_turns.Pairs(torch.empty(8, 256, dtype=torch.bfloat16), row, 2)):
        site_turns.expanded(streams, added, site)
        site_turns.turned(streams, added, site, torch.empty(256), 1e-6)


def kernel_names() -> Iterator[str]:
    """Of all kernels of the device set but those for warp groups, which are written in another language."""
    from deepinfer.kernels import gpu
    from deepinfer.kernels.gpu.direct import Kernel

    for found in pkgutil.iter_modules(gpu.__path__):
        module = importlib.import_module(f"{gpu.__name__}.{found.name}")
        for value in vars(module).values():
            if isinstance(value, Kernel) and value.function.fn.__module__ == module.__name__:
                if not found.name.startswith("hopper"):
                    yield f"{found.name}.{value.function.fn.__name__}"


def main() -> None:
    """Small cases of both profiles, then what profile fast launches at other shapes."""
    architecture = int(sys.argv[1])
    counts: dict[str, dict[str, Counter[str]]] = {"strict": {}, "fast": {}}
    shared: dict[str, int] = {}
    profile = "strict"

    def seen(name: str, ptx: str) -> None:
        counts[profile].setdefault(name, Counter()).update(INSTRUCTION.findall(ptx))

    def memory(name: str, num_bytes: int) -> None:
        shared[name] = max(num_bytes, shared.get(name, 0))

    compile_only(seen, memory=memory, architecture=architecture)
    from deepinfer.kernels.dispatch import select_ops
    from deepinfer.kernels.gpu import capability
    from deepinfer.kernels.gpu.backend import GpuOps
    from deepinfer.kernels.gpu.fast_backend import FastGpuOps

    known = capability.capability_of
    capability.capability_of = lambda _: known(architecture // 10)  # what a CPU stands for
    strict, fast = GpuOps(False, True, PLACE), FastGpuOps(True, PLACE)
    small = [case for case in all_cases() if case.small]
    for case in small:
        case.run(strict, Draws(case.name))
    turn_cases.play_all(strict, select_ops("reference", bf16=False))
    drafts(strict)
    first_rows(strict)
    profile = "fast"
    for case in small:
        if not case.name.startswith("written out"):  # a witness of profile strict
            case.run(fast, Draws(case.name))
    for width in (128, 512):
        attention(width)
    sublayers(fast)
    for length in (4096, 1 << 18):
        index(length)
    for num_rows in (4, 200):
        experts(fast, num_rows)
    products(fast)
    widened()
    drafts(fast)
    first_rows(fast)
    inputs_of_layers()
    launched = counts["strict"].keys() | counts["fast"].keys()
    print(json.dumps({**counts, "shared": shared, "left_out": sorted(set(kernel_names()) - launched)}))


if __name__ == "__main__":
    main()
