from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepinfer.engine.errors import RunError
from deepinfer.eval.compare import CompareConfig, Verdict, compare_runs
from deepinfer.eval.records import RunHeader, RunWriter
from deepinfer.eval.rows import SampleRows, blank_rows
from deepinfer.eval.shard_file import SampleOutcome

NUM_DOCUMENTS, NUM_IDS = 9, 12
Edit = Callable[[int, str, SampleRows], SampleRows | None]
"""Called with document, policy and rows; changes the rows in place, or returns others."""


def write_run(
    path: Path,
    edit: Edit | None = None,
    num_documents: int = NUM_DOCUMENTS,
    policies: tuple[str, ...] = ("disjoint:8", "document"),
    failed: tuple[int, ...] = (),
    **configuration: Any,
) -> Path:
    header = RunHeader(
        kind="eval",
        configuration={"policies": list(policies), "profile": "strict"} | configuration,
        samples=tuple(
            {"sample_id": f"d{i}", "workload": "w", "num_ids": NUM_IDS} for i in range(num_documents)
        ),
    )
    with RunWriter(path, header) as writer:
        for index in range(num_documents):
            if index in failed:
                writer.add(SampleOutcome(sample_id=f"d{index}", failure="too long"))
                continue
            tables = []
            for policy in policies:
                rows = blank_rows(f"d{index}", policy, np.arange(NUM_IDS, dtype=np.int32) + index, num_top=0)
                rows.logprob[1:] = -np.linspace(1, 3, NUM_IDS - 1, dtype=np.float32) - index / 8
                rows.valid[1:] = True
                rows.rank[1:] = 2
                rows.window_id[1:] = 0
                tables.append((edit(index, policy, rows) if edit else None) or rows)
            writer.add(SampleOutcome(sample_id=f"d{index}", rows=tuple(tables)))
        writer.finish({})
    return path


def replaced(rows: SampleRows, **columns: Any) -> SampleRows:
    return SampleRows(**{**rows.__dict__, **columns})


def test_equal_runs_are_the_same_whatever_their_folders(tmp_path: Path) -> None:
    found = compare_runs(write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    assert (found.verdict, found.exit_code) == (Verdict.SAME, 0)
    assert [policy.num_different for policy in found.policies] == [0, 0]
    assert [policy.first for policy in found.policies] == [None, None]
    assert [policy.ulp_counts for policy in found.policies] == [{}, {}]
    assert found.changed_settings == {}


def test_one_bit_of_one_log_probability_is_found_and_described(tmp_path: Path) -> None:
    def flip(index: int, policy: str, rows: SampleRows) -> SampleRows | None:
        if (index, policy) != (5, "document"):
            return None
        bits = rows.logprob_bits.copy()
        bits[7] ^= 1
        return replaced(rows, logprob=bits.view(np.float32))

    found = compare_runs(write_run(tmp_path / "a"), write_run(tmp_path / "b", flip))
    assert (found.verdict, found.exit_code) == (Verdict.DIFFERENT, 1)
    assert found.reason == "policy document: 1 rows differ"
    untouched, touched = found.policies
    assert untouched.num_different == 0
    assert touched.num_different == 1
    assert touched.ulp_counts == {"1": 1}
    first = touched.first
    assert first is not None
    assert (first.sample_id, first.position, first.token_id) == ("d5", 7, 12)
    assert (first.column, first.ulp) == ("logprob", 1)
    assert first.bits is not None
    assert first.bits[0] ^ first.bits[1] == 1
    entry = found.to_dict()["policies"][1]["first_difference"]
    assert entry["bits"] == [f"0x{bits:08x}" for bits in first.bits]


def test_the_sign_of_zero_and_the_bits_of_a_nan_count(tmp_path: Path) -> None:
    def with_bits(bits: int) -> Edit:
        def edit(index: int, policy: str, rows: SampleRows) -> SampleRows:
            changed = rows.logprob_bits.copy()
            changed[3] = bits
            return replaced(rows, logprob=changed.view(np.float32))

        return edit

    zero = [write_run(tmp_path / name, with_bits(bits)) for name, bits in (("z0", 0), ("z1", 0x80000000))]
    assert compare_runs(*zero).verdict is Verdict.DIFFERENT
    nans = [
        write_run(tmp_path / name, with_bits(bits))
        for name, bits in (("n0", 0x7FC00000), ("n1", 0x7FC00001), ("n2", 0x7FC00000))
    ]
    assert compare_runs(nans[0], nans[1]).verdict is Verdict.DIFFERENT
    same_nan = compare_runs(nans[0], nans[2])
    assert (same_nan.verdict, same_nan.exit_code) == (Verdict.INCONCLUSIVE, 5)
    assert same_nan.policies[0].delta is None, "a NaN is not averaged away"
    json.dumps(same_nan.to_dict(), allow_nan=False)


@pytest.mark.parametrize("column", ["rank", "window_id", "valid"])
def test_another_column_counts_too(tmp_path: Path, column: str) -> None:
    def edit(index: int, policy: str, rows: SampleRows) -> None:
        if index == 2:
            getattr(rows, column)[4] = 0 if column == "valid" else 5
            rows.logprob[4] = np.nan if column == "valid" else rows.logprob[4]

    found = compare_runs(write_run(tmp_path / "a"), write_run(tmp_path / "b", edit))
    assert found.verdict is Verdict.DIFFERENT
    first = found.policies[0].first
    assert first is not None
    assert (first.column, first.sample_id, first.position, first.bits) == (column, "d2", 4, None)
    assert found.policies[0].num_one_sided == (1 if column == "valid" else 0)


def test_the_paired_difference_is_that_of_the_formula(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(0.01, 0.02, (NUM_DOCUMENTS, NUM_IDS - 1))

    def worsen(index: int, policy: str, rows: SampleRows) -> None:
        rows.logprob[1:] -= noise[index].astype(np.float32)

    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", worsen)
    delta = compare_runs(a, b).policies[0].delta
    assert delta is not None
    sums = noise.sum(axis=1)
    mean = sums.sum() / noise.size
    error = math.sqrt(9 / 8 * ((sums - mean * (NUM_IDS - 1)) ** 2).sum()) / noise.size
    assert delta.mean == pytest.approx(mean, rel=1e-4)
    assert delta.standard_error == pytest.approx(error, rel=1e-4)
    back = compare_runs(b, a).policies[0].delta
    assert back is not None
    assert back.mean == -delta.mean


def test_differences_are_taken_and_summed_without_rounding_to_float32(tmp_path: Path) -> None:
    values = np.random.default_rng(9).uniform(-20, 0, (2, NUM_DOCUMENTS, NUM_IDS - 1)).astype(np.float32)

    def side(number: int) -> Edit:
        def edit(index: int, policy: str, rows: SampleRows) -> None:
            rows.logprob[1:] = values[number, index]

        return edit

    runs = [write_run(tmp_path / str(number), side(number)) for number in (0, 1)]
    delta = compare_runs(*runs).policies[0].delta
    assert delta is not None
    exact = [[float(a) - float(b) for a, b in zip(*pair, strict=True)] for pair in zip(*values, strict=True)]
    assert delta.mean == math.fsum(map(math.fsum, exact)) / (NUM_DOCUMENTS * (NUM_IDS - 1))


def test_tolerance_mode_asks_for_a_regression_that_is_significant_and_large(tmp_path: Path) -> None:
    tolerant = CompareConfig(tolerance=True)

    def shifted(amount: float, spread: float = 0.0) -> Edit:
        def edit(index: int, policy: str, rows: SampleRows) -> None:
            rows.logprob[1:] -= np.float32(amount + spread * (-1) ** index)

        return edit

    a = write_run(tmp_path / "a")
    runs = {
        "worse": (shifted(0.01), Verdict.DIFFERENT),
        "tiny": (shifted(0.0005), Verdict.SAME),
        "noisy": (shifted(0.01, spread=0.2), Verdict.SAME),
        "better": (shifted(-0.01), Verdict.SAME),
    }
    for name, (edit, expected) in runs.items():
        b = write_run(tmp_path / name, edit)
        assert compare_runs(a, b, tolerant).verdict is expected, name
        assert compare_runs(a, b).verdict is Verdict.DIFFERENT, "bits differ in any case"


def test_fewer_than_8_documents_are_no_test(tmp_path: Path) -> None:
    def worsen(index: int, policy: str, rows: SampleRows) -> None:
        rows.logprob[1:] -= np.float32(1.0)

    for count, expected in ((7, Verdict.INCONCLUSIVE), (8, Verdict.DIFFERENT)):
        a = write_run(tmp_path / f"a{count}", num_documents=count)
        b = write_run(tmp_path / f"b{count}", worsen, num_documents=count)
        found = compare_runs(a, b, CompareConfig(tolerance=True))
        assert found.verdict is expected
    assert (
        "7 documents are too few"
        in compare_runs(tmp_path / "a7", tmp_path / "b7", CompareConfig(tolerance=True)).reason
    )


def test_runs_of_other_tokens_samples_or_policies_are_not_compared(tmp_path: Path) -> None:
    def other_token(index: int, policy: str, rows: SampleRows) -> None:
        if index == 4:
            rows.token_id[6] = 99

    a = write_run(tmp_path / "a")
    with pytest.raises(
        RunError, match=r"sample 'd4' differs in its token ids from position 6 on \(10 against 99"
    ):
        compare_runs(a, write_run(tmp_path / "b", other_token))

    def shorter(index: int, policy: str, rows: SampleRows) -> SampleRows:
        cut = {name: column[:-1] for name, column in rows.__dict__.items() if isinstance(column, np.ndarray)}
        return replaced(rows, **cut)

    with pytest.raises(RunError, match=r"sample 'd0' .* position 11 on \(11 against the end\)"):
        compare_runs(a, write_run(tmp_path / "c", shorter))
    with pytest.raises(RunError, match="sample 'd8' is in one run only"):
        compare_runs(a, write_run(tmp_path / "d", num_documents=8))
    with pytest.raises(RunError, match="window policies differ"):
        compare_runs(a, write_run(tmp_path / "e", policies=("document",)))
    with pytest.raises(RunError, match="sample 'd1' failed in one run only"):
        compare_runs(a, write_run(tmp_path / "f", failed=(1,)))


def test_samples_that_failed_in_both_runs_leave_the_answer_open(tmp_path: Path) -> None:
    found = compare_runs(write_run(tmp_path / "a", failed=(1,)), write_run(tmp_path / "b", failed=(1,)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.failed_samples == ("d1",)


def test_settings_that_changed_are_listed(tmp_path: Path) -> None:
    found = compare_runs(write_run(tmp_path / "a"), write_run(tmp_path / "b", profile="fast", keep=7))
    assert found.changed_settings == {"profile": ("strict", "fast"), "keep": (None, 7)}
    assert found.verdict is Verdict.SAME
