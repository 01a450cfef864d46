"""``deepinfer bench``: the figures it names, what makes them fair, and that it leaves nothing behind."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from deepinfer.cli import main
from deepinfer.commands.bench import render, to_document
from deepinfer.engine import core, drawn_rows
from deepinfer.engine.api import EngineConfig, Profile
from deepinfer.engine.errors import InputError
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.torch_threads import torch_threads_of
from deepinfer.eval import bench as bench_module
from deepinfer.eval.bench import BenchConfig, BenchResult, Speed, run_bench
from deepinfer.eval.stopwatch import replaced, timed
from deepinfer.kernels.dispatch import select_ops

SMALL = BenchConfig(context=40, num_sequences=2, batches=(1, 3), prompt_tokens=20, num_steps=2, num_passes=2)


@pytest.fixture(scope="module")
def result() -> BenchResult:
    """A small run on the tiny checkpoint."""
    model = Path(__file__).parent / "data" / "golden" / "ckpt_A_quantized"
    return run_bench(model, EngineConfig(num_threads=1), SMALL)


def test_the_document_has_the_figures_by_their_names(result: BenchResult) -> None:
    found = json.loads(json.dumps(to_document(result)))
    assert sorted(found["decode"]) == ["1", "3"]
    for figures in (found["scoring"], found["prefill"], *found["decode"].values()):
        for one in (figures, figures["strict"], figures["fast"]):
            assert one["tokens_per_s"] >= one["median_tokens_per_s"] > 0
            assert one["ratio_to_plain"] == one["tokens_per_s"] / figures["plain_tokens_per_s"]
        assert figures["tokens_per_s"] == figures["strict"]["tokens_per_s"]
    assert 0 < found["scheduler_overhead"] < 1
    assert (found["num_threads"], found["profile"], found["num_passes"]) == (1, "strict", 2)


def test_the_chosen_profile_is_the_headline(result: BenchResult) -> None:
    found = to_document(replace(result, engine=EngineConfig(profile=Profile.FAST)))
    assert found["decode"]["3"]["tokens_per_s"] == found["decode"]["3"]["fast"]["tokens_per_s"]
    assert found["profile"] == "fast"


def test_the_default_is_what_the_issue_asks_for() -> None:
    assert BenchConfig().context == 1024
    assert BenchConfig().batches == (1, 8, 32)
    assert BenchConfig().num_passes == 3


def test_the_table_says_threads_processor_and_every_variant(result: BenchResult) -> None:
    shown = render(result)
    assert shown.startswith("1 threads, ")
    assert "decode, batch 3" in shown
    assert "fast/plain" in shown
    assert "scheduler overhead at batch 3" in shown


def test_figures_come_from_the_timed_passes() -> None:
    speed = Speed(num_tokens=6, pass_s=(3.0, 1.0, 2.0))
    assert (speed.tokens_per_s, speed.median_tokens_per_s) == (6.0, 3.0)
    assert speed.ratio_to(Speed(num_tokens=6, pass_s=(2.0, 9.0, 9.0))) == 2.0


def test_variants_take_turns_and_the_first_turn_is_not_timed() -> None:
    order: list[str] = []
    works = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    speeds = bench_module._take_turns(works, SMALL, 5)
    assert order == ["a", "b"] * (1 + SMALL.num_passes)
    assert [len(speed.pass_s) for speed in speeds.values()] == [2, 2]


def test_nothing_stays_replaced(result: BenchResult) -> None:
    for function in (core.EngineCore.step, Transformer.forward, Transformer.logits, drawn_rows.draw_rows):
        assert "timed_function" not in function.__qualname__


def test_plain_torch_gets_as_many_threads_as_the_kernels() -> None:
    before = torch.get_num_threads()
    for kernel_set, wanted in (("reference", 3), ("cpu", 1)):
        with torch_threads_of(select_ops(kernel_set, bf16=False, num_threads=3)):
            assert torch.get_num_threads() == wanted
    assert torch.get_num_threads() == before


def test_the_command_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, result: BenchResult) -> None:
    seen = []

    def run(model: Path | None, engine: EngineConfig, bench: BenchConfig, progress: object) -> BenchResult:
        seen.append((model, engine, bench))
        return result

    monkeypatch.setattr(bench_module, "run_bench", run)
    done = CliRunner().invoke(main, ["bench", "--context", "77", "--threads", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert seen == [(None, EngineConfig(num_threads=2), BenchConfig(context=77))]
    assert json.loads(done.stdout) == json.loads(json.dumps(to_document(result)))


def test_a_context_beyond_the_model_is_refused(golden_dir: Path) -> None:
    too_long = BenchConfig(context=4097, num_sequences=1, batches=(1,))
    with pytest.raises(InputError, match="choose a smaller --context"):
        run_bench(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=1), too_long)


def test_a_stopwatch_adds_up_calls_even_those_that_raise() -> None:
    def work(seconds: float) -> float:
        time.sleep(seconds)
        if seconds > 0.015:
            raise ValueError("broken")
        return seconds

    owner = SimpleNamespace(work=work)
    with timed(owner, "work") as watch:
        assert owner.work(0.01) == 0.01
        with pytest.raises(ValueError, match="broken"):
            owner.work(0.02)
    assert owner.work is work
    assert watch.num_calls == 2
    assert watch.seconds >= 0.03


def test_a_replacement_ends_with_its_block() -> None:
    owner = SimpleNamespace(value=1)

    def fail() -> None:
        with replaced(owner, "value", 2):
            assert owner.value == 2
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert owner.value == 1
