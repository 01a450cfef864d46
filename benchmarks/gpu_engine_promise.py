"""What holds on the device: verify, random traffic, recorded steps, no hidden wait, memory of a long text."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trace_play import check, core_of, packed, random_trace

from deepinfer.engine.api import EngineConfig, GenerateRequest, RequestFailure, SamplingParams, ScoreRequest
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM

ROOT = Path(__file__).resolve().parents[1]
LONG_TOKENS = 131072
_FIRST_TOKEN, _LAST_TOKEN = 4, 4000


def run_verify(config: EngineConfig, size: str, checks: tuple[str, ...] = ()) -> dict[str, Any]:
    """``deepinfer verify`` in this process; all checks if none are named."""
    from deepinfer.verify import report, runner
    from deepinfer.verify.size import Size

    verdict = runner.run_verify(runner.VerifyConfig(engine=config, size=Size(size), checks=checks))
    counts: dict[str, int] = {}
    for result in verdict.results:
        counts[result.status.value] = counts.get(result.status.value, 0) + 1
    bad = [
        f"{r.name} {r.status}: {r.detail[:200]}"
        for r in verdict.results
        if r.status.value not in ("same", "not_applicable")
    ]
    seen = (
        f"exit code {verdict.exit_code}, {verdict.num_comparisons:,} comparisons, {counts}; {'; '.join(bad)}"
    )
    green = verdict.exit_code == 0
    return {"verdict": "green" if green else "RED", "seen": seen, "report": report.render_text(verdict)}


def lock_fast(config: EngineConfig, out: Path) -> dict[str, Any]:
    """Lock the fast scores of the bundled samples of this platform into a copy of the bundled store.

    ``locked.tgz`` in ``out`` is the whole store, ready to take the place of ``baselines/locked``.
    """
    import shutil
    import tarfile
    import tempfile

    from deepinfer.baselines.store import Baselines
    from deepinfer.eval.engines.native import NativeScorer
    from deepinfer.eval.provenance import platform_of
    from deepinfer.eval.scoring_plan import plan_samples
    from deepinfer.verify.baseline_run import author_of, check_samples, lock_samples
    from deepinfer.verify.gate import bundled_gate, bundled_store_dir

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "locked"
        shutil.copytree(bundled_store_dir(), place)
        scorer, store = NativeScorer(None, config), Baselines(place)
        planned = plan_samples(scorer, bundled_gate().plans)
        author = author_of(scorer, "first fast baselines of this platform", "benchmarks/gpu_engine.py")
        locked = lock_samples(scorer, store, planned, author, lambda *_: None)
        again = NativeScorer(None, replace(config, max_batch_tokens=700))
        checked, _ = check_samples(again, Baselines(place), planned, lambda *_: None, None)
        with tarfile.open(out / "locked.tgz", "w:gz") as archive:
            archive.add(place, "locked")
    good = locked.exit_code == 0 and checked.exit_code == 0
    seen = f"{platform_of(config)}: {len(planned)} samples locked; in other batches: exit {checked.exit_code}"
    return {"verdict": "green" if good else "RED", "seen": seen, "report": locked.to_dict()}


def random_traffic(config: EngineConfig, seconds: float) -> dict[str, Any]:
    """The random traces of the tests, in recorded steps, against each request alone without recording."""
    started, compared, seed, recorded = time.perf_counter(), 0, 0, 0
    llm = LLM(ROOT / "tests" / "data" / "golden" / "ckpt_A_quantized", config)
    while time.perf_counter() - started < seconds and seed < 400:
        trace = random_trace(seed)
        core = core_of(llm, replace(trace, core=replace(trace.core, graphs=True)))
        compared += check(llm, trace, core)
        recorded += core.launcher.num_recorded
        seed += 1
    seen = f"{seed} traces, {compared:,} tokens with their logits rows, {recorded} graphs recorded: all equal"
    return {"verdict": "green", "seen": seen}


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Token ids of the bundled model, drawn evenly."""
    drawn = np.random.default_rng(seed).integers(_FIRST_TOKEN, _LAST_TOKEN, (count, length))
    found: list[list[int]] = drawn.tolist()
    return found


def requests(count: int, length: int, max_tokens: int, seed: int = 0) -> list[GenerateRequest]:
    """Prompts of different lengths, half of them sampled, that go on to ``max_tokens``."""
    return [
        GenerateRequest(
            request_id=f"r{i}",
            token_ids=ids[: length - i],
            params=SamplingParams(
                temperature=float(i % 2), seed=7 + i, max_tokens=max_tokens, ignore_eos=True, num_logprobs=2
            ),
        )
        for i, ids in enumerate(prompts(count, length, seed))
    ]


def generated(llm: LLM, asked: list[GenerateRequest]) -> list[list[bytes]]:
    """Everything that was said of every token, to the bit."""
    found = []
    for result in llm.generate(asked):
        if isinstance(result, RequestFailure):
            raise RuntimeError(result.reason)
        found.append([packed(record) for record in result[0].records])
    return found


def recorded_steps(config: EngineConfig, on_cpu: list[str], digest: Any) -> dict[str, Any]:
    """Decoding from graphs, without graphs, and on the CPU: the same bytes."""
    llm = LLM(None, config)
    asked = requests(12, 150, 80)
    plain = generated(llm.with_config(replace(config, recorded_steps=False)), asked)
    core = llm._core
    played = generated(llm, asked)
    wrong = [i for i, (one, other) in enumerate(zip(plain, played, strict=True)) if one != other]
    far = [i for i, text in enumerate(played[: len(on_cpu)]) if digest(text) != on_cpu[i]]
    recorded = core.launcher.num_recorded
    seen = (
        f"12 sequences of 80 tokens: {12 - len(wrong)} equal with and without graphs ({recorded} recorded), "
        f"{len(on_cpu) - len(far)} of {len(on_cpu)} equal to the CPU"
    )
    good = not wrong and not far and recorded > 0
    return {"verdict": "equal" if good else "DIFFER", "seen": seen, "wrong": wrong, "unlike_cpu": far}


def no_hidden_wait(config: EngineConfig) -> dict[str, Any]:
    """Steps with the guard of torch up: a synchronising call other than the fetch of results raises."""
    seen = []
    for graphs in (False, True):
        core: EngineCore = LLM(None, replace(config, recorded_steps=graphs, prefix_caching=False))._core
        for round_number in range(2):  # the first round compiles and records
            for request in requests(8, 100, 40, seed=round_number):
                core.add(replace(request, request_id=f"{round_number}{request.request_id}"))
            torch.cuda.set_sync_debug_mode("error" if round_number else "default")
            try:
                steps = 0
                while core.has_unfinished:
                    core.step()
                    steps += 1
            finally:
                torch.cuda.set_sync_debug_mode("default")
        seen.append(f"{steps} steps {'with' if graphs else 'without'} graphs")
    torch.cuda.set_sync_debug_mode("error")
    try:
        int(torch.ones(1, device="cuda").sum())
        caught = False
    except RuntimeError:
        caught = True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    text = f"{' and '.join(seen)} without a wait; control {'caught' if caught else 'NOT caught'}"
    return {"verdict": "green" if caught else "RED", "seen": text}


def long_document(config: EngineConfig) -> dict[str, Any]:
    """Device memory at its peak while 128k tokens are scored, weights included."""
    gc.collect()  # engines of the stages before
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    llm = LLM(None, replace(config, allow_long=True))
    weights = torch.cuda.memory_allocated()
    (ids,) = prompts(1, LONG_TOKENS)
    started = time.perf_counter()
    (result,) = llm.score([ScoreRequest(request_id="long", token_ids=ids)])
    elapsed = time.perf_counter() - started
    if isinstance(result, RequestFailure):
        raise RuntimeError(result.reason)
    peak, reserved = torch.cuda.max_memory_allocated() / 2**20, torch.cuda.max_memory_reserved() / 2**20
    finite = bool(np.isfinite(result.logprobs[1:]).all())
    seen = (
        f"{LONG_TOKENS:,} tokens in {elapsed:.1f} s ({LONG_TOKENS / elapsed:.0f} a second), "
        f"peak {peak:.0f} MiB allocated, {reserved:.0f} MiB reserved, "
        f"{(weights - before) / 2**20:.0f} MiB of it weights, "
        f"{before / 2**20:.0f} MiB left by earlier stages"
    )
    return {"verdict": "green" if peak <= 1024 and finite else "RED", "seen": seen, "peak_mib": peak}
