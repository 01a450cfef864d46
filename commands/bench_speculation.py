"""What ``deepinfer bench --speculation`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.engine.speculation.stats import DraftStats
    from deepinfer.eval.bench_speculation import Group, SpeculationResult


def to_document(result: SpeculationResult) -> dict[str, Any]:
    """JSON values; the names of the figures are a stable interface."""
    from deepinfer.engine.speculation.stats import merged
    from deepinfer.eval.bench_speculation import ASYNC, KNOWN
    from deepinfer.eval.environment import describe_environment, processor_name

    first, smallest = result.bench.policies[0], min(result.bench.batches)
    alone = result.batches[smallest]
    best = max(result.bench.policies, key=alone.speedup)
    return {
        "environment": {**describe_environment(), "processor": processor_name()},
        "speculation": {
            f"speedup_batch_{smallest}": alone.speedup(best),
            "best_policy": best,
            f"known_speedup_batch_{smallest}": alone.speedup(KNOWN),
            f"async_speedup_batch_{smallest}": alone.speedup(ASYNC),
            "same_bytes": result.same_bytes,
            "policy": first,
            **_drafts(merged(list(result.stats.values()))),
            "batches": {str(batch): _speeds(group) for batch, group in result.batches.items()},
            "workloads": {
                name: _drafts(result.stats[name]) | {"speedup": group.speedup(first), **_speeds(group)}
                for name, group in result.workloads.items()
            },
            "elapsed_s": result.elapsed_s,
        },
    }


def _speeds(group: Group) -> dict[str, Any]:
    variants = {
        name: {"tokens_per_s": group.tokens_per_s(name), "ratio_to_plain": group.speedup(name)}
        for name in group.seconds
    }
    return {"same_bytes": group.same_bytes, "variants": variants}


def _drafts(stats: DraftStats) -> dict[str, Any]:
    """Acceptance by place, mean length, waste and calibration."""
    return {
        "accepted_length": stats.accepted_length,
        "acceptance": stats.acceptance.tolist(),
        "rows_verified": int(stats.num_verified.sum()),
        "rows_wasted": stats.rows_wasted,
        "calibration_error": stats.calibration_error,
        "reliability": [
            {"count": int(count), "confidence": confidence, "accepted": accepted}
            for count, confidence, accepted in stats.reliability
        ],
    }


def render(result: SpeculationResult) -> str:
    """Tables of speeds, acceptance and reliability."""
    from deepinfer.engine.speculation.stats import merged
    from deepinfer.eval.report import render_table

    lines: list[str] = []
    for batch, group in result.batches.items():
        rows = [
            [name, f"{group.tokens_per_s(name):.1f}", f"{group.speedup(name):.2f}"] for name in group.seconds
        ]
        lines += render_table([f"batch {batch}", "tokens/s", "of plain"], rows)
    rows = []
    for name, stats in [*result.stats.items(), ("all", merged(list(result.stats.values())))]:
        places = [f"{value:.3f}" for value in stats.acceptance]
        rows.append([name, f"{stats.accepted_length:.2f}", *places, f"{stats.calibration_error:.3f}"])
    size = len(rows[0]) - 3
    lines += render_table(
        [result.bench.policies[0], "tokens/step", *map(str, range(1, size + 1)), "ECE"], rows
    )
    total = merged(list(result.stats.values()))
    lines += ["", "confidence -> accepted (drafts)"]
    for count, confidence, accepted in total.reliability:
        if count:
            lines.append(f"  {confidence:.2f} -> {accepted:.2f}  {'#' * round(40 * accepted):40s} ({count})")
    same = "the bytes of plain decoding" if result.same_bytes else "OTHER BYTES than plain decoding"
    lines.append(f"every variant gave {same}; {total.rows_wasted} drafted rows gave no token")
    return "\n".join(lines)
