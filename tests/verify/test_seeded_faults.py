"""Seeded faults: each makes its check go red, bisect names the op, and what remains is minimal."""

from __future__ import annotations

import inspect

import pytest

from deepinfer.engine.cache.snapshots import Snapshot
from deepinfer.engine.sampler import _words
from deepinfer.kernels.cpu import chains, norms
from deepinfer.verify import runner
from deepinfer.verify.faults.edit import Edit, EditError, edited
from deepinfer.verify.faults.fault import Fault
from deepinfer.verify.self_test import FAULTS, FaultRecord, render, self_test

# Those that need no kernel compiled and whose cases are short: the whole table is a slow test.
FAST = (
    "linear-blas-for-few-rows",
    "flipped-bit-in-a-scale",
    "entries-of-the-wrong-neighbour",
    "kept-rows-by-chunk",
    "draw-keyed-by-row",
    "half-of-a-rejected-row",
    "infinite-logit",
)


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


def test_faults_of_every_kind_are_found_and_named() -> None:
    records = self_test(faults=[named(name) for name in FAST], shrinking=False)
    assert [record.fault for record in records if not record.as_expected] == []
    assert all(record.detected for record in records)
    assert sum(bool(record.expected) for record in records) == 5
    assert "7 of 7 faults found, 5 named by bisect" in render(records)


@pytest.mark.slow
def test_the_whole_table() -> None:
    records = self_test()
    assert [record.fault for record in records if not record.as_expected] == []
    bisected = [record for record in records if record.expected and record.is_minimal]
    assert len(bisected) >= 20
    silent = {record.fault for record in records if not record.detected}
    assert silent == {"router-ties-to-the-higher-expert", "two-experts-in-descending-order"}


def test_every_check_has_a_fault() -> None:
    assert {fault.check for fault in FAULTS} - {""} == {check.name for check in runner.CHECKS} - {"grid"}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert sum(bool(fault.ops) for fault in FAULTS) >= 20


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_fits_the_source_and_leaves_no_trace(fault: Fault) -> None:
    """Edits of kernels are compiled when first called, so this costs nothing."""
    before = (norms.rms_norm_kernel, chains.rms_norm_kernel, vars(Snapshot)["restore"], _words)
    with edited(*fault.edits):
        pass
    assert before == (norms.rms_norm_kernel, chains.rms_norm_kernel, vars(Snapshot)["restore"], _words)


def test_an_edit_reaches_every_module_that_holds_the_function() -> None:
    [edit] = named("norm-reads-the-row-before").edits
    with edited(edit):
        assert chains.rms_norm_kernel is norms.rms_norm_kernel
        source = norms.rms_norm_kernel.py_func.__code__.co_filename
        assert source == "<fault in rms_norm_kernel>"
    assert inspect.getsourcefile(norms.rms_norm_kernel.py_func) is not None


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit(module="engine.sampler", function="_words", old="no such text", new=""), "0 times, not once"),
        (Edit(module="engine.sampler", function="_words", old="row", new=""), "times, not once"),
        (Edit(module="engine.sampler", function="no_such", old="", new=""), "has no no_such"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: Edit, reason: str) -> None:
    with pytest.raises(EditError, match=reason), edited(edit):
        pass


def test_a_record_is_as_expected_only_if_the_right_op_is_named() -> None:
    def record(named: str, expected: str = "linear or hc_mix: out", check: str = "batch") -> FaultRecord:
        return FaultRecord(
            fault="f",
            check=check,
            detected=bool(named),
            named=named,
            expected=expected,
            is_minimal=True,
            smallest="",
            where="",
            about="",
            seconds=0.0,
        )

    assert record("hc_mix: out 2").as_expected
    assert not record("hc_expand: out").as_expected
    assert not record("linear: in x").as_expected
    assert not record("").as_expected
    assert record("", expected="", check="").as_expected
    assert not record("x: out", expected="", check="").as_expected
    assert set(record("x: out").to_dict()) >= {"fault", "check", "detected", "named", "expected"}
