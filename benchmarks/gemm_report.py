"""What the GEMM benchmark concludes from its measurements; see ``gpu_gemm.py``."""

from __future__ import annotations

import math
from typing import Any

ROWS = (1, 8, 16, 64, 512, 2048, 8192)
FEW = (1, 8, 16, 64)


def best(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The fastest candidate with the bits of the witness."""
    usable = [entry for entry in entries if entry["equal"] and "seconds" in entry]
    return min(usable, key=lambda entry: float(entry["seconds"])) if usable else None


def mean(ratios: list[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 0.0


def choose(result: dict[str, Any]) -> dict[str, Any]:
    """For one shape: the split whose best equal candidates come closest to cuBLAS over all M."""
    choices = []
    for chunk, found in result["chunks"].items():
        picked = {m: entry for m, entries in found["rows"].items() if (entry := best(entries))}
        ratios = {m: result["cublas"][m] / entry["seconds"] for m, entry in picked.items()}
        few = mean([ratios[str(m)] for m in FEW if str(m) in ratios])
        many = mean([ratios[str(m)] for m in ROWS if m not in FEW and str(m) in ratios])
        score = few**4 * many**3 if len(picked) == len(ROWS) else 0.0
        choice = {"chunk": int(chunk), "ratios": ratios, "few": few, "many": many, "score": score}
        choices.append(choice | {"tiles": {m: entry["tile"] for m, entry in picked.items()}})
    return max(choices, key=lambda choice: float(choice["score"]))


def report(results: dict[str, Any]) -> str:
    """Markdown: per shape and split the ratios to cuBLAS, then the choice and the table to paste."""
    lines, few, many = [f"# bf16 GEMM on {results['device']}, torch {results['torch']}", ""], [], []
    header = " | ".join(f"M={m}" for m in ROWS)
    lines += [
        "Speed, cuBLAS = 1, best equal tile:",
        "",
        f"| N x K, chunk | {header} | unequal |",
        "|---" * (len(ROWS) + 2) + "|",
    ]
    for name, result in results["shapes"].items():
        for chunk, found in result["chunks"].items():
            cells, unequal = [], 0
            for m in ROWS:
                entries = found["rows"].get(str(m), [])
                unequal += sum(not entry["equal"] for entry in entries)
                fastest = best(entries)
                cells.append(f"{result['cublas'][str(m)] / fastest['seconds']:.2f}" if fastest else "-")
            lines.append(f"| {name}, {chunk} | {' | '.join(cells)} | {unequal} |")
    lines += ["", "cuBLAS, microseconds:", ""]
    for name, result in results["shapes"].items():
        times = ", ".join(f"{m}: {seconds * 1e6:.1f}" for m, seconds in result["cublas"].items())
        lines.append(f"* {name}: {times}")
    lines += ["", "Chosen:", ""]
    for name, result in results["shapes"].items():
        choice = choose(result)
        ratios = choice["ratios"]
        few += [ratios[str(m)] for m in FEW if str(m) in ratios]
        many += [ratios[str(m)] for m in ROWS if m not in FEW and str(m) in ratios]
        lines.append(f"* {name}: chunk {choice['chunk']}, {choice['few']:.3f} and {choice['many']:.3f}")
        for m, tile in choice["tiles"].items():
            lines.append(f"    * M={m}: Tile({', '.join(str(value) for value in tile.values())})")
    lines += [
        "",
        f"Geometric means: few rows {mean(few):.3f} (wanted 0.75), many {mean(many):.3f} (wanted 0.85)",
    ]
    return "\n".join(lines) + "\n"
