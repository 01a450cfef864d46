"""The baseline check of verify: same, different, missing, required or not, tolerance mode."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.baselines.committing import Author
from deepinfer.baselines.store import Baselines
from deepinfer.engine.api import EngineConfig, Profile
from deepinfer.eval.baseline_scores import lockable, score_samples
from deepinfer.eval.scoring_plan import ScoringPlan, plan_samples
from deepinfer.verify.checks import baselines
from deepinfer.verify.context import CheckContext
from deepinfer.verify.gate import BaselineGate, StoreChoice, bundled_store_dir
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.size import Size

PLANS = (ScoringPlan(workload="unicode", max_tokens=20),)


@pytest.fixture
def scorer(mini_dir: Path) -> Callable[..., Any]:
    """The evaluation's scorer without a model."""
    name = "deepinfer_fake_scorer"
    if name not in sys.modules:
        path = Path(__file__).parents[1] / "eval" / "fake_scorer.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return lambda **fields: sys.modules[name].FakeScorer(**{"model_dir": mini_dir, **fields})


@pytest.fixture
def locked(tmp_path: Path, scorer: Callable[..., Any]) -> Path:
    """What the fake answers in profile strict, locked."""
    store, engine = Baselines(tmp_path / "store"), scorer()
    planned = plan_samples(engine, PLANS)
    store.writer(Author(provenance={"torch": "old"})).lock(lockable(score_samples(engine, planned)))
    return store.root


@pytest.fixture
def check(make_context: Callable[..., CheckContext]) -> Callable[..., CheckResult]:
    def run(
        engine: Any,
        store: Path,
        *,
        is_required: bool = True,
        plans: Any = PLANS,
        size: Size = Size.DEFAULT,
    ) -> CheckResult:
        context = make_context(size=size)
        context.open_scorer = lambda: engine
        choice = StoreChoice(path=store, is_named=is_required)
        context.baseline_gate = BaselineGate(store=choice, is_required=is_required, plans=plans)
        return baselines.run(context)

    return run


Check = Callable[..., CheckResult]
MakeScorer = Callable[..., Any]


def test_equal_bits_are_the_same(check: Check, scorer: MakeScorer, locked: Path) -> None:
    result = check(scorer(), locked)
    assert result.status is Status.SAME
    assert result.num_inspected == 12 * 21
    assert len(result.items) == 12


@pytest.mark.parametrize(("is_required", "num_samples"), [(True, 12), (False, 1)])
def test_the_quick_size_takes_a_part_and_says_so(
    check: Check, scorer: MakeScorer, locked: Path, is_required: bool, num_samples: int
) -> None:
    result = check(scorer(), locked, is_required=is_required, size=Size.QUICK)
    assert result.status is Status.SAME
    assert [item.status for item in result.items] == [Status.SAME] * num_samples
    assert ("11 more are left to the larger sizes" in result.detail) == (not is_required)


def test_the_quick_size_finds_what_it_takes(check: Check, scorer: MakeScorer, locked: Path) -> None:
    planned = plan_samples(scorer(), PLANS)
    token_id = int(planned[0].token_ids[7])
    engine = scorer(override={token_id: -0.123})
    assert check(engine, locked, is_required=False, size=Size.QUICK).status is Status.DIFFERENT


def test_perplexity_stands_beside_what_was_locked(check: Check, scorer: MakeScorer, locked: Path) -> None:
    [bar] = check(scorer(), locked).perplexity
    assert (bar.num_documents, bar.num_tokens) == (12, 12 * 20)
    assert bar.reference == pytest.approx(bar.ppl, rel=1e-12)
    assert bar.low is not None
    assert bar.high is not None
    assert bar.low < bar.ppl < bar.high
    token_id = int(plan_samples(scorer(), PLANS)[3].token_ids[7])
    [moved] = check(scorer(override={token_id: -9.0}), locked).perplexity
    assert moved.reference == bar.reference
    assert moved.ppl != bar.ppl


def test_one_moved_value_is_different_and_named(check: Check, scorer: MakeScorer, locked: Path) -> None:
    engine = scorer()
    token_id = int(plan_samples(engine, PLANS)[3].token_ids[7])
    result = check(scorer(override={token_id: -0.123}), locked)
    assert result.status is Status.DIFFERENT
    assert "torch old ->" in result.detail
    assert result.num_different == sum(item.status is Status.DIFFERENT for item in result.items) >= 1


@pytest.mark.parametrize(("is_required", "status"), [(True, Status.UNLOCKED), (False, Status.SAME)])
def test_missing_keys_count_when_a_store_was_named(
    check: Check, scorer: MakeScorer, locked: Path, is_required: bool, status: Status
) -> None:
    plans = (*PLANS, ScoringPlan(workload="code", max_tokens=5))
    result = check(scorer(), locked, is_required=is_required, plans=plans)
    assert result.status is status
    assert ("24 missing" if is_required else "24 more are not locked") in result.detail


def test_an_edited_text_leaves_orphans(
    check: Check, scorer: MakeScorer, locked: Path, tmp_path: Path
) -> None:
    edited = tmp_path / "unicode.jsonl"
    edited.write_text('{"id": "unicode-00", "text": "edited"}\n')
    result = check(scorer(), locked, plans=(ScoringPlan(workload=str(edited), max_tokens=20),))
    assert result.status is Status.UNLOCKED
    assert "1 missing, 12 orphan" in result.detail


def test_a_required_store_that_is_not_there_is_unlocked(
    check: Check, scorer: MakeScorer, tmp_path: Path
) -> None:
    result = check(scorer(), tmp_path / "nowhere")
    assert result.status is Status.UNLOCKED
    assert "deepinfer baseline lock" in result.detail


def test_a_damaged_ledger_is_unlocked(check: Check, scorer: MakeScorer, locked: Path) -> None:
    [line] = (locked / "ledger").iterdir()
    line.write_bytes(line.read_bytes()[:-9])
    assert check(scorer(), locked).status is Status.UNLOCKED


def test_values_that_are_not_finite_are_inconclusive(check: Check, scorer: MakeScorer, locked: Path) -> None:
    token_id = int(plan_samples(scorer(), PLANS)[0].token_ids[5])
    result = check(scorer(override={token_id: float("nan")}), locked)
    assert result.status is Status.INCONCLUSIVE


def fast(scorer: MakeScorer, **fields: Any) -> Any:
    return scorer(config=EngineConfig(profile=Profile.FAST), **fields)


def test_without_a_baseline_of_the_platform_perplexity_is_compared(
    check: Check, scorer: MakeScorer, locked: Path
) -> None:
    result = check(fast(scorer), locked, is_required=False)
    assert result.status is Status.SAME
    assert "baseline lock --profile fast" in result.detail
    assert "\n" not in result.detail
    assert check(fast(scorer), locked).status is Status.UNLOCKED, "a named store must hold the platform"


def test_tolerance_mode_sees_a_regression(check: Check, scorer: MakeScorer, locked: Path) -> None:
    ids = {int(i) for item in plan_samples(scorer(), PLANS) for i in item.token_ids}
    worse = dict.fromkeys(ids, -6.0)
    result = check(fast(scorer, override=worse), locked, is_required=False)
    assert result.status is Status.DIFFERENT
    assert "regression" in result.detail


def test_another_model_has_nothing_to_compare_with(check: Check, scorer: MakeScorer, locked: Path) -> None:
    result = check(scorer(checkpoint_digest="ab" * 32), locked, is_required=False)
    assert result.status is Status.NOT_APPLICABLE
    assert "drift of bits is NOT checked" in result.detail


def test_the_bundled_store_holds_the_bundled_plans(scorer: MakeScorer) -> None:
    locked_keys = {
        (scope.workload_name, sample)
        for scope, samples in Baselines(bundled_store_dir()).state().locked.items()
        for sample in samples
    }
    planned = plan_samples(scorer(), BaselineGate.plans)
    assert {(item.key.scope.workload_name, item.key.sample) for item in planned} == locked_keys
