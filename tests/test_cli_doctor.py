"""``deepinfer doctor``: the bytes it prints are the formulas', the promise is the configuration's."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deepinfer.cli import main
from deepinfer.commands.doctor import render
from deepinfer.engine.api import EngineConfig, PrefillMode, Profile
from deepinfer.engine.cache.footprint import RELEASED, ByteFormulas, measure
from deepinfer.engine.config import load_model_config
from deepinfer.engine.model_config import ModelConfig
from deepinfer.kernels.cpu.compiled import cache_folder, kernel_sources_digest
from deepinfer.verify.doctor import examine
from deepinfer.verify.promise import Standing, clauses
from deepinfer.verify.runner import CHECKS

RELEASED_CONFIG = Path(__file__).parent / "data" / "released_config.json"


@pytest.fixture(scope="module")
def released() -> ModelConfig:
    return load_model_config(RELEASED_CONFIG)


def doctor(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def standings(engine: EngineConfig, model: ModelConfig) -> dict[str, Standing]:
    return {clause.name: clause.standing for clause in clauses(engine, model)}


def test_the_released_model_takes_the_published_bytes(released: ModelConfig) -> None:
    found = measure(released, exact=False)
    assert (found.window_record, found.main_record, found.index_record) == (528, 288, 68)
    assert found.per_token == 890
    assert found.block == 128 * 890
    assert found.slot == 40 * 70_752 + 3 * 4096  # rings of 134 records, and half a pair in three layers
    assert found == ByteFormulas.of(released).evaluate() == RELEASED
    assert found.of_request(0) == found.slot
    assert found.of_request(129) == found.slot + 2 * 113_920


@pytest.mark.parametrize("exact", [False, True], ids=["released", "none"])
def test_measured_bytes_equal_the_formulas(exact: bool, mini_dir: Path, golden_dir: Path) -> None:
    for folder in (mini_dir, golden_dir / "ckpt_A_quantized"):
        config = load_model_config(folder)
        assert measure(config, exact=exact) == ByteFormulas.of(config).evaluate(exact=exact)


def test_mxfp8_main_entries_are_counted_too(released: ModelConfig) -> None:
    config = replace(released, use_fp4_sparse_kv=False)
    found = measure(config, exact=False)
    assert found == ByteFormulas.of(config).evaluate()
    assert found.per_token == Fraction(3 * (528 + 68), 2) + 528 + 68


def test_doctor_prints_machine_promise_and_bytes() -> None:
    shown = doctor("--model", str(RELEASED_CONFIG), "--threads", "3")
    assert "3 threads" in shown
    assert f"kernels    {kernel_sources_digest()[:16]}" in shown
    rows = {line.split("  ")[0]: line.split()[-3:] for line in shown.splitlines()}
    assert rows["window record"] == ["528"] * 3
    assert rows["main record"] == ["288"] * 3
    assert rows["index record"] == ["68"] * 3
    assert rows["per token"] == ["890"] * 3
    assert "3,753,728 at 1,024 tokens" in shown
    assert "profile strict" in shown
    assert "first use" not in shown


def test_doctor_json_names_the_same_facts() -> None:
    found: dict[str, Any] = json.loads(doctor("--json", "--profile", "fast", "--cache-format", "none"))
    assert found["configuration"]["profile"] == "fast"
    assert found["kernels"]["digest"] == kernel_sources_digest()
    assert found["kernels"]["cache_folder"] == str(cache_folder())
    assert found["kernels"]["vector_lanes"] in {8, 16}
    assert set(found["environment"]["packages"]) >= {"deepinfer", "torch", "numba", "numpy"}
    assert found["cache_bytes"]["measured"] == found["cache_bytes"]["formula"]
    assert found["cache_bytes"]["measured"]["window_record"] == 4 * 128
    assert found["cache_bytes"]["released_model"]["per_token"] == 890
    assert set(found["promise"]) == {"strict", "fast"}
    assert found["warm"] is None


def test_warming_reports_what_the_first_use_cost(golden_dir: Path) -> None:
    found = examine(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=1), warm=True)
    assert found.warm is not None
    assert found.warm.first_s >= found.warm.again_s > 0 or found.warm.num_compiled == 0
    assert found.kernels.num_cached > 0
    assert "first use" in render(found)


def test_the_profiles_differ_in_the_machine_clause_only(mini_dir: Path) -> None:
    model = load_model_config(mini_dir)
    strict = standings(EngineConfig(), model)
    fast = standings(EngineConfig(profile=Profile.FAST), model)
    assert {name for name in strict if strict[name] != fast[name]} == {"machine"}
    assert (strict["machine"], fast["machine"]) == (Standing.HOLDS, Standing.NOT_PROMISED)


def test_what_a_configuration_cannot_promise_is_not_promised(mini_dir: Path) -> None:
    model = load_model_config(mini_dir)
    truncated = standings(EngineConfig(prefill=PrefillMode.COMPACT), model)
    assert truncated["decode"] is Standing.NOT_APPLICABLE
    assert standings(EngineConfig(prefix_caching=False), model)["prefix"] is Standing.NOT_APPLICABLE
    plain = standings(EngineConfig(backend="reference"), model)
    assert Standing.HOLDS not in plain.values()


def test_every_check_named_by_a_clause_exists(mini_dir: Path) -> None:
    named = {clause.check for clause in clauses(EngineConfig(), load_model_config(mini_dir))} - {None}
    assert named <= {check.name for check in CHECKS}
    assert named
