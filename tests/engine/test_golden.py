"""The handed reference outputs of an independent implementation, every array within its own tolerance."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from deepinfer.engine.checkpoint import open_checkpoint

SEQUENCES = ["A_s0", "A_s2", "A_s4", "A_s7"]
# margins and sensitivities describe the reference itself; the normed confidence is a variant we must not
# follow
INFORMATIVE = ("margin", "sensitivity", "dspark_anchor", "dspark_confidence_normed")


def _load_golden_run() -> Any:
    """Test folders are no packages, so the module is loaded from its file."""
    spec = importlib.util.spec_from_file_location("golden_run", Path(__file__).with_name("golden_run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GoldenRun


GoldenRun = _load_golden_run()


def _sorted_router(want: dict[str, torch.Tensor]) -> None:
    """The reference lists experts by score, we by id: sort its ids and carry the weights along."""
    if "router_indices" in want:
        order = want["router_indices"].argsort(-1)
        want["router_indices"] = want["router_indices"].gather(-1, order)
        if "router_weights" in want:
            want["router_weights"] = want["router_weights"].gather(-1, order)


def _problem(got: torch.Tensor, want: torch.Tensor, tolerance: dict[str, Any]) -> str | None:
    """What breaks the tolerance, or None."""
    if not want.is_floating_point():
        same = got[..., : want.shape[-1]].long() == want.long()  # our selections may have more empty columns
        rows = (same if same.ndim == 1 else same.all(-1)).double().mean()
        needed = (
            1.0
            if "exact" in tolerance
            else tolerance.get("rows_exact_fraction", tolerance.get("fraction_equal"))
        )
        return None if rows >= needed else f"{rows:.4f} of the rows equal, {needed} needed"
    difference = (got.double() - want.double()).abs()
    if "max_abs" in tolerance and difference.max() > tolerance["max_abs"]:
        return f"max {difference.max():.3g} > {tolerance['max_abs']}"
    if "mean_abs" in tolerance and difference.mean() > tolerance["mean_abs"]:
        return f"mean {difference.mean():.3g} > {tolerance['mean_abs']}"
    if "positions_fraction" in tolerance:
        near = (difference <= tolerance["positions_max_abs"]).float().mean()
        if near < tolerance["positions_fraction"]:
            return f"{near:.4f} of the values near, {tolerance['positions_fraction']} needed"
    if "min_mean_cosine" in tolerance:
        cosine = torch.nn.functional.cosine_similarity(got, want, dim=-1).mean()
        if cosine < tolerance["min_mean_cosine"]:
            return f"mean cosine {cosine:.5f} < {tolerance['min_mean_cosine']}"
    return None


def _compare(run: Any, sequence: str, variant: str, golden_dir: Path) -> tuple[list[str], int]:
    manifest = json.loads((golden_dir / "manifest.json").read_text())["files"][f"{sequence}.safetensors"]
    with safe_open(golden_dir / f"{sequence}.safetensors", "pt") as stored:
        names = [key for key in stored.keys() if key.startswith(f"{variant}.")]
        want = {key.removeprefix(f"{variant}."): stored.get_tensor(key) for key in names}
        input_ids = stored.get_tensor("input_ids")
    anchors = {}
    if "dspark_anchor_positions" in want:
        anchors = {"positions": want["dspark_anchor_positions"], "tokens": want["dspark_anchor_tokens"]}
    got = run.arrays(input_ids, anchors)
    _sorted_router(want)
    problems, compared = [], 0
    for name, value in want.items():
        tolerance = manifest[f"{variant}.{name}"]["tolerance"]
        if any(part in name for part in INFORMATIVE):
            continue
        assert name in got, f"{variant}.{name} has no counterpart here"
        if name == "dspark_tokens":
            clear = want["dspark_token_margin"] > (1e-3 if variant == "fp32_noq" else 0.1)
            same = got[name][:, 1:] == value[:, 1:]
            if not bool(same[clear].all()):
                problems.append(f"{name}: a token with a clear margin differs")
        elif "info" not in tolerance:
            problem = _problem(got[name], value, tolerance)
            problems += [f"{name}: {problem}"] if problem else []
        compared += 1
    return problems, compared


@pytest.mark.parametrize("variant", ["fp32_noq", "fp32_q", "bf16_q"])
@pytest.mark.parametrize("kind", ["quantised", "bf16"])
def test_every_reference_array_is_reproduced(
    kind: str, variant: str, golden_dir: Path, unquantised_dir: Path
) -> None:
    folder = golden_dir / "ckpt_A_quantized" if kind == "quantised" else unquantised_dir
    run = GoldenRun(open_checkpoint(folder), variant)
    for sequence in SEQUENCES:
        problems, compared = _compare(run, sequence, variant, golden_dir)
        assert not problems, f"{sequence} {variant}: {problems}"
        assert compared >= (3 if variant == "bf16_q" else 25)


@pytest.mark.parametrize("variant", ["fp32_noq", "fp32_q"])
def test_the_reference_kernels_reproduce_them_too(variant: str, golden_dir: Path) -> None:
    run = GoldenRun(open_checkpoint(golden_dir / "ckpt_A_quantized"), variant, "reference")
    for sequence in SEQUENCES[:3]:
        problems, _ = _compare(run, sequence, variant, golden_dir)
        assert not problems, f"{sequence} {variant}: {problems}"


def test_a_forgotten_cache_round_trip_is_noticed(golden_dir: Path) -> None:
    """Negative control: exact caches against the outputs of quantised ones."""
    run = GoldenRun(open_checkpoint(golden_dir / "ckpt_A_quantized"), "fp32_noq")
    problems, _ = _compare(run, "A_s7", "fp32_q", golden_dir)
    assert any(problem.startswith("logits:") for problem in problems)


def test_confidence_reads_the_state_before_the_norm(golden_dir: Path) -> None:
    """The two variants differ in the reference by more than the tolerance, and ours is the released one."""
    run = GoldenRun(open_checkpoint(golden_dir / "ckpt_A_quantized"), "fp32_noq")
    with safe_open(golden_dir / "A_s4.safetensors", "pt") as stored:
        anchors = {
            part: stored.get_tensor(f"fp32_noq.dspark_anchor_{part}") for part in ("positions", "tokens")
        }
        raw = stored.get_tensor("fp32_noq.dspark_confidence_raw")
        normed = stored.get_tensor("fp32_noq.dspark_confidence_normed")
        ours = run.arrays(stored.get_tensor("input_ids"), anchors)["dspark_confidence_raw"]
    assert (ours - raw).abs().max() < 1e-4
    assert (ours - normed).abs().max() > 1e-2
