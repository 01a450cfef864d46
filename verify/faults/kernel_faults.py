"""Faults in the CPU kernels: sums that depend on company, rows that mix, rounding that comes and goes."""

from __future__ import annotations

from deepinfer.verify.faults.edit import Edit
from deepinfer.verify.faults.fault import Fault

# In two halves: on some processors a library's product is the very chain of ours, and no bit would move.
_BLAS = """
    if {when} and num_groups == 1:
        panels = weight.panels[0]
        if panels.dtype == np.uint16:
            panels = widened(panels)
        dense = panels.transpose(1, 0, 2).reshape(weight.num_inputs, -1)
        dense, half = dense[:, : weight.num_outputs], weight.num_inputs // 2
        out = rows[:, :half] @ dense[:half] + rows[:, half:] @ dense[half:]
    return torch.from_numpy(out)"""


def _linear(name: str, when: str, about: str, check: str) -> Fault:
    return Fault(
        name=name,
        about=about,
        edits=(
            Edit(
                module="kernels.cpu.linear",
                function="linear",
                old="\n    return torch.from_numpy(out)",
                new=_BLAS.format(when=when),
            ),
        ),
        check=check,
        ops=("linear", "linear_fp32", "hc_mix"),  # the last one multiplies by a weight too
        tensor="out",
    )


KERNEL_FAULTS = (
    _linear(
        "linear-blas-for-many-rows",
        "rows.shape[0] % 2 == 0",
        "a library has another order of sums for even numbers of rows",
        "batch",
    ),
    _linear(
        "linear-blas-for-few-rows",
        "rows.shape[0] < 4",
        "another kernel for single rows",
        "kernels",
    ),
    _linear(
        "linear-blas-with-threads",
        "workers.num_threads > 1",
        "a parallel kernel with sums of its own",
        "threads",
    ),
    Fault(
        name="linear-races",
        about="a data race: the last bits of one output are anyone's guess",
        edits=(
            Edit(
                module="kernels.cpu.linear",
                function="linear",
                old="\n    return torch.from_numpy(out)",
                new="\n    out[0, 0] *= np.float32(1 + 1e-4 * np.random.default_rng().random())"
                "\n    return torch.from_numpy(out)",
            ),
        ),
        check="rerun",
        ops=("linear", "linear_fp32", "hc_mix"),
        tensor="out",
    ),
    Fault(
        name="linear-rounds-batches-only",
        about="profile fast rounds to bfloat16 in batches and not in single rows",
        edits=(
            Edit(
                module="kernels.cpu.chains",
                function="_linear",
                old="num_outputs, bf16, low",
                new="num_outputs, bf16 and high - low > 20, low",
            ),
        ),
        check="profiles",
        ops=("low_rank_query", "rotated_latent", "window_latent", "attention_output"),
        tensor="out",
    ),
    Fault(
        name="norm-reads-the-row-before",
        about="an index of a vectorised tail is off by one row",
        edits=(
            Edit(
                module="kernels.cpu.norms",
                function="rms_norm_kernel",
                old="rsqrt(sums[r] / width + eps)",
                new="rsqrt(sums[r - 1 if r == 6 else r] / width + eps)",
            ),
        ),
        check="batch",
        ops=("rms_norm",),
        tensor="out",
    ),
    Fault(
        name="rotation-of-single-rows",
        about="decoding rotates by the position before",
        edits=(
            Edit(
                module="kernels.cpu.rope",
                function="rotate_kernel",
                old="cos[positions[row]], sin[positions[row]]",
                new="cos[max(0, positions[row] - (x.shape[0] == 1))], "
                "sin[max(0, positions[row] - (x.shape[0] == 1))]",
            ),
        ),
        check="decode",
        ops=("rotate_",),
        tensor="out",
    ),
    Fault(
        name="collapse-order",
        about="streams are summed backwards in large calls",
        edits=(
            Edit(
                module="kernels.cpu.hyper",
                function="collapse_kernel",
                old="factor, source = pre[row, n], streams[row, n]",
                new="m = pre.shape[1] - 1 - n if high - low > 24 else n"
                "\n            factor, source = pre[row, m], streams[row, m]",
            ),
        ),
        check="chunks",
        ops=("hc_collapse",),
        tensor="out",
    ),
    Fault(
        name="expand-order",
        about="streams are mixed backwards in odd rows of a call",
        edits=(
            Edit(
                module="kernels.cpu.hyper",
                function="expand_kernel",
                old="factor, source = comb[row, a, b], streams[row, a]",
                new="m = post.shape[1] - 1 - a if row % 2 else a"
                "\n                factor, source = comb[row, m, b], streams[row, m]",
            ),
        ),
        check="batch",
        ops=("hc_expand",),
        tensor="out",
    ),
    Fault(
        name="shared-expert-first",
        about="experts of large batches are summed in another order",
        edits=(
            Edit(
                module="kernels.cpu.experts",
                function="combine_kernel",
                old="target[:] = _ZERO",
                new="target[:] = _ZERO"
                "\n        if routed.shape[0] > 100:\n            target[:] = shared[row]",
            ),
            Edit(
                module="kernels.cpu.experts",
                function="combine_kernel",
                old="total = target[d] + common[d]",
                new="total = target[d] if routed.shape[0] > 100 else target[d] + common[d]",
            ),
        ),
        check="batch",
        ops=("moe",),
        tensor="out",
    ),
    Fault(
        name="pooling-of-the-last-pair",
        about="the last group of a call pools its first token twice",
        edits=(
            Edit(
                module="kernels.cpu.compress",
                function="_pool_pairs_kernel",
                old="values[j, 1, d]",
                new="values[j, 1 if j < out.shape[0] - 1 else 0, d]",
            ),
        ),
        check="chunks",
        ops=("pool_pairs",),
        tensor="out",
    ),
    Fault(
        name="engram-gate-floor",
        about="a guard against zero is larger where a call has few rows",
        edits=(
            Edit(
                module="kernels.cpu.engram",
                function="_gate_kernel",
                old="max(abs(score), _GATE_FLOOR)",
                new="max(abs(score), _GATE_FLOOR if streams.shape[0] > 8 else np.float32(0.25))",
            ),
        ),
        check="decode",
        ops=("engram_gate",),
        tensor="out",
    ),
    Fault(
        name="router-weights-by-row",
        about="the weights of the first row of a call are not normalised with the floor",
        edits=(
            Edit(
                module="kernels.cpu.router",
                function="route_kernel",
                old="score / total if normalise",
                new="score * (np.float32(1.0) / total) if row == 0 else score / total if normalise",
            ),
        ),
        check="batch",
        ops=("route",),
        tensor="out",
    ),
    Fault(
        name="logprob-in-another-order",
        about="a new version sums in another order: the same answer in any company, not that of before",
        edits=(
            Edit(
                module="kernels.cpu.logprobs",
                function="_gather_kernel",
                old="(value - largest) - log_total",
                new="value - (largest + log_total)",
            ),
        ),
        check="baselines",
    ),
)
