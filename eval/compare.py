"""``deepinfer compare``: are two runs the same, bit for bit, and if not, where they part and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.engine.errors import RunError
from deepinfer.eval.paired import FirstDifference, PolicyComparison, compare_tables
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.stats import MIN_DOCUMENTS, bounded_exp
from deepinfer.eval.stored_run import StoredRun, read_run


class Verdict(StrEnum):
    """Words of product.md section 5 that a comparison can end with."""

    SAME = "same"
    DIFFERENT = "different"
    INCONCLUSIVE = "inconclusive"


EXIT_CODES = {Verdict.SAME: 0, Verdict.DIFFERENT: 1, Verdict.INCONCLUSIVE: 5}


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """What counts as different.

    Attributes:
        tolerance: compare statistically in place of bit for bit.
        max_z: in tolerance mode, a regression has a one-sided paired clustered z above this, and
        max_increase: a perplexity that grew by more than this fraction.
    """

    tolerance: bool = False
    max_z: float = 3.0
    max_increase: float = 0.001


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answer.

    Attributes:
        left: folder of run A.
        right: folder of run B.
        verdict: the worst of the policies'.
        reason: one line that says why.
        policies: a comparison for each window policy, never merged.
        changed_settings: configuration key -> its values in A and B, where they differ.
        failed_samples: samples that failed in both runs, which nothing can be said about.
    """

    left: Path
    right: Path
    verdict: Verdict
    reason: str
    policies: tuple[PolicyComparison, ...]
    changed_settings: dict[str, tuple[Any, Any]]
    failed_samples: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """Exit code of the verdict."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; floats of first differences also as hex bits."""
        return {
            "verdict": self.verdict.value,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "runs": [str(self.left), str(self.right)],
            "changed_settings": {key: list(values) for key, values in self.changed_settings.items()},
            "failed_samples": list(self.failed_samples),
            "policies": [_policy_dict(policy) for policy in self.policies],
        }


def compare_runs(left: Path, right: Path, config: CompareConfig | None = None) -> Comparison:
    """Compare two complete run folders that scored the same token ids under the same window policies.

    Raises:
        RunError: a folder is no complete, undamaged run, or the runs did not score the same tokens.
    """
    config = config or CompareConfig()
    run_a, run_b = read_run(left), read_run(right)
    _refuse_other_tokens(run_a, run_b)
    failed = tuple(name for name, outcome in run_a.outcomes.items() if outcome.failure)
    policies = tuple(
        compare_tables(
            policy,
            [
                (run_a.rows(name, policy), run_b.rows(name, policy))
                for name in run_a.outcomes
                if name not in failed
            ],
        )
        for policy in run_a.policies
    )
    verdict, reason = _judge(policies, failed, config)
    return Comparison(
        left=left,
        right=right,
        verdict=verdict,
        reason=reason,
        policies=policies,
        changed_settings={
            key: (run_a.configuration.get(key), run_b.configuration.get(key))
            for key in sorted(run_a.configuration.keys() | run_b.configuration.keys())
            if run_a.configuration.get(key) != run_b.configuration.get(key)
        },
        failed_samples=failed,
    )


def perplexity_ratio(policy: PolicyComparison) -> float | None:
    """exp(mean difference): perplexity of B over that of A on the same tokens."""
    return bounded_exp(policy.delta.mean) if policy.delta else None


def _judge(
    policies: tuple[PolicyComparison, ...], failed: tuple[str, ...], config: CompareConfig
) -> tuple[Verdict, str]:
    """The worst verdict wins: different, then inconclusive, then same."""
    judged = [_judge_policy(policy, config) for policy in policies]
    for verdict in (Verdict.DIFFERENT, Verdict.INCONCLUSIVE):
        for policy, (found, reason) in zip(policies, judged, strict=True):
            if found is verdict:
                return verdict, f"policy {policy.policy}: {reason}"
    if failed:
        return Verdict.INCONCLUSIVE, f"{len(failed)} samples failed in both runs, first {failed[0]!r}"
    if not any(policy.num_tokens for policy in policies):
        return Verdict.INCONCLUSIVE, "no token was scored in both runs"
    return judged[0]


def _judge_policy(policy: PolicyComparison, config: CompareConfig) -> tuple[Verdict, str]:
    if not config.tolerance and policy.num_different:
        return Verdict.DIFFERENT, f"{policy.num_different} rows differ"
    if policy.num_non_finite:
        return Verdict.INCONCLUSIVE, f"{policy.num_non_finite} log-probabilities are not finite"
    if not config.tolerance:
        return Verdict.SAME, "every bit of every row is equal"
    delta = policy.delta
    if delta is None or delta.num_documents < MIN_DOCUMENTS:
        count = delta.num_documents if delta else 0
        return Verdict.INCONCLUSIVE, f"{count} documents are too few for a test; it needs {MIN_DOCUMENTS}"
    z_score, ratio = delta.z_score, bounded_exp(delta.mean)
    assert z_score is not None, "enough documents give an error"
    if z_score > config.max_z and ratio > 1.0 + config.max_increase:
        return Verdict.DIFFERENT, f"perplexity grew by {ratio - 1.0:.3%} with z = {z_score:.2f}"
    return Verdict.SAME, f"no regression (perplexity {ratio - 1.0:+.3%}, z = {z_score:.2f})"


def _refuse_other_tokens(run_a: StoredRun, run_b: StoredRun) -> None:
    where = f"{run_a.path} and {run_b.path}"
    if set(run_a.policies) != set(run_b.policies):
        raise RunError(
            f"{where}: window policies differ ({', '.join(run_a.policies)} against "
            f"{', '.join(run_b.policies)}); compare runs of the same policies"
        )
    for name in [*run_a.outcomes, *run_b.outcomes]:
        if (name in run_a.outcomes) != (name in run_b.outcomes):
            raise RunError(f"{where}: sample {name!r} is in one run only; compare runs of the same samples")
        if (run_a.outcomes[name].failure is None) != (run_b.outcomes[name].failure is None):
            raise RunError(f"{where}: sample {name!r} failed in one run only; score it again")
    for name, outcome in run_a.outcomes.items():
        for rows in outcome.rows:
            _refuse_other_ids(where, rows, run_b.rows(name, rows.policy))


def _refuse_other_ids(where: str, left: SampleRows, right: SampleRows) -> None:
    length = min(len(left), len(right))
    unequal = np.flatnonzero(left.token_id[:length] != right.token_id[:length])
    if not len(unequal) and len(left) == len(right):
        return
    position = int(unequal[0]) if len(unequal) else length
    sides = [int(rows.token_id[position]) if position < len(rows) else "the end" for rows in (left, right)]
    raise RunError(
        f"{where}: sample {left.sample_id!r} differs in its token ids from position {position} on "
        f"({sides[0]} against {sides[1]}); log-probabilities of other tokens cannot be paired"
    )


def _policy_dict(policy: PolicyComparison) -> dict[str, Any]:
    delta = policy.delta
    z_score = delta.z_score if delta else None
    return {
        "policy": policy.policy,
        "num_tokens": policy.num_tokens,
        "num_one_sided": policy.num_one_sided,
        "num_different": policy.num_different,
        "num_non_finite": policy.num_non_finite,
        "num_documents": delta.num_documents if delta else None,
        "mean_difference": delta.mean if delta else None,
        "mean_difference_standard_error": delta.standard_error if delta else None,
        "z": z_score if z_score is not None and math.isfinite(z_score) else None,
        "perplexity_ratio": perplexity_ratio(policy),
        "ulp_counts": policy.ulp_counts,
        "first_difference": _first_dict(policy.first) if policy.first else None,
    }


def _first_dict(first: FirstDifference) -> dict[str, Any]:
    return {
        "sample_id": first.sample_id,
        "position": first.position,
        "token_id": first.token_id,
        "column": first.column,
        "values": [value if math.isfinite(value) else str(value) for value in first.values],
        "bits": [f"0x{bits:08x}" for bits in first.bits] if first.bits else None,
        "ulp": first.ulp,
    }
