"""Compile the kernels for warp groups; print bytes of stack, what loops write there, and matrix instructions.

Arguments: names of kernels among ``scan``, ``spilled``, ``whole``, ``within``, ``again``, ``attend``,
``window``, ``inner``, ``outer``, ``few`` and ``some``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from compile_only import compile_only

ROWS, HEADS, WIDTH, LENGTH, EXPERTS = 4, 64, 512, 4096, 4
LONGEST = 1000
"""Instructions of a loop; a warp that waits for its next task is in a longer one."""
FOUND: dict[str, list[dict[str, int]]] = {}


def stores_in_loops(assembly: str) -> int:
    """Stores to the stack between labels and branches back to them."""
    labels: dict[str, int] = {}
    lines: list[str] = []
    inside: set[int] = set()
    for line in assembly.splitlines():
        if label := re.match(r"\s*\.?(L_x_\d+):", line):
            labels[label[1]] = len(lines)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            lines.append(instruction[1])
            back = re.search(r"BRA.*`\(\.(L_x_\d+)\)", instruction[1])
            if back and len(lines) - LONGEST < labels.get(back[1], len(lines)) < len(lines):
                inside.update(range(labels[back[1]], len(lines)))
    return sum("STL" in lines[i] for i in inside)


def seen(name: str, ptx: str, cubin: bytes) -> None:
    """What the assembler says of a kernel."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        command = [knobs.nvidia.nvdisasm.path, "-c", str(path)]
        assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", text)
    assert stack is not None
    one = {"stack": int(stack[1]), "stores": stores_in_loops(assembly)}
    FOUND.setdefault(name, []).append(
        one | {"wgmma": ptx.count("wgmma.mma_async"), "mma": ptx.count("mma.sync")}
    )


def records(kind: str, codes: int, scales: int, together: bool) -> object:
    """Empty records, 128 a group, scales behind each record's codes or behind those of the group."""
    from deepinfer.kernels.gpu.records import bind_records

    width = {"mxfp8": codes}.get(kind, 2 * codes)
    if together:
        whole = torch.empty(2, 128, codes + scales, dtype=torch.uint8)
        return bind_records(kind, width, whole[..., :codes], whole[..., codes:])
    whole = torch.empty(2, 128 * (codes + scales), dtype=torch.uint8)
    cut = 128 * codes
    return bind_records(kind, width, whole[:, :cut].view(2, 128, -1), whole[:, cut:].view(2, 128, -1))


def scan(registers: int, within: bool, keys: bool = True, best: bool = True) -> None:
    """The scan of all entries, or of candidates; ``keys`` and ``best`` are what it writes."""
    from deepinfer.kernels.gpu.hopper_scan import HopperScanTile
    from deepinfer.kernels.gpu.hopper_scan import scan as launch

    q, w = torch.empty(ROWS, 32, 128, dtype=torch.bfloat16), torch.empty(ROWS, 32, dtype=torch.bfloat16)
    ints = torch.zeros(ROWS, 32, dtype=torch.int32)
    blocks = torch.zeros(ROWS, LENGTH // 8, dtype=torch.int32) if within else None
    pool = records("mxfp4", 64, 4, False)
    launch(q, w, pool, ints, ints[:, 0], LENGTH, 8, HopperScanTile(4, registers), blocks, keys, best)


def attend(entries: int) -> None:
    """Attention of 64 heads over a window and ``entries`` selected slots."""
    from deepinfer.kernels.gpu.hopper_attention import attend as launch

    q, slots = (
        torch.empty(ROWS, HEADS, WIDTH, dtype=torch.bfloat16),
        torch.zeros(ROWS, 512, dtype=torch.int32),
    )
    near, far = records("mxfp8", 512, 16, True), records("fp4", 256, 32, True)
    chosen = slots[:, :entries].contiguous()
    launch(q, near, slots[:, :128].contiguous(), far, chosen, torch.empty(HEADS))


def experts(inner: bool) -> None:
    """Products of four experts."""
    from deepinfer.kernels.gpu.expert_groups import plan_tiles
    from deepinfer.kernels.gpu.hopper_experts import inner_products, outer_products
    from deepinfer.kernels.gpu.mxfp4_weights import Mxfp4Weights

    def fake(n: int, k: int) -> Mxfp4Weights:
        words = torch.empty(EXPERTS, n, k // 8, dtype=torch.int32)
        return Mxfp4Weights(words, torch.empty(EXPERTS, k // 32, n, dtype=torch.uint8))

    tiles = plan_tiles(torch.zeros(ROWS, 2, dtype=torch.int64), EXPERTS, 128)
    x = torch.empty(ROWS if inner else 2 * ROWS, 512, dtype=torch.bfloat16)
    if inner:
        inner_products(x, tiles, torch.empty(ROWS, 2), fake(512, 512), fake(512, 512), 10.0)
    else:
        outer_products(x, tiles, fake(512, 512))


def codes(num_rows: int) -> None:
    """Products of rows with FP8 weights."""
    from deepinfer.kernels.gpu.fp8_linear import multiply_fp8
    from deepinfer.kernels.gpu.fp8_weights import Fp8Weights
    from deepinfer.kernels.gpu.gemm import Workspace

    words, factors = torch.zeros(1, 20, 160, 32, 4), torch.zeros(40, 40)
    x, out = torch.empty(num_rows, 1280, dtype=torch.bfloat16), torch.empty(num_rows, 1280)
    weights = Fp8Weights(words.to(torch.int32), factors.to(torch.int32))
    multiply_fp8(x, weights, out, Workspace.on(torch.device("cpu"), 1 << 10, 1))


def main() -> None:
    """Compile what was asked for."""
    compile_only(binary=seen)
    kinds = {
        "scan": lambda: scan(112, False, keys=False),
        "spilled": lambda: scan(56, False, keys=False),
        "whole": lambda: scan(112, False),
        "within": lambda: scan(112, True),
        "again": lambda: scan(112, True, best=False),
        "attend": lambda: attend(512),
        "window": lambda: attend(0),
        "inner": lambda: experts(True),
        "outer": lambda: experts(False),
        "few": lambda: codes(8),
        "some": lambda: codes(64),
    }
    results = {}
    for name in sys.argv[1:]:
        FOUND.clear()
        kinds[name]()
        (own,) = (found for kernel, found in FOUND.items() if kernel.startswith("hopper"))
        results[name] = own[-1]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
