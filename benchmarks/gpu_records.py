"""Layers that read packed records against layers that decode them first: bytes, and what it saves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_engine_promise import prompts, requests
from gpu_engine_speed import scoring_speed
from gpu_scoring import _scored, _uneven
from gpu_turns import gap_of, said
from layers_common import timed
from released_stack import RandomCheckpoint, stack_config, stack_core

from deepinfer.engine.api import EngineConfig, GenerateRequest, SamplingParams
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.transformer import Transformer
from deepinfer.kernels import record_chains
from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.gpu import pool_attention
from deepinfer.kernels.gpu.records import BoundRecords, bind_records, load_records
from deepinfer.kernels.operands import PagedRecords

BATCHES = (1, 16, 64)


def decoding(model: Transformer) -> Transformer:
    """The same weights in layers that are given decoded rows."""
    ops = copy(model.ops)
    ops.reads_records = False  # type: ignore[misc]
    return model.bound_to(ops)


def bundled_records(config: EngineConfig, is_short: bool) -> dict[str, Any]:
    """Scores in waves of many shapes, tokens of turns and of eager chunks; then times of turns and waves."""
    sizes = {"prefix_caching": False, "max_batch_tokens": 8192, "num_cache_blocks": 1024}
    base = LLM(None, replace(config, **sizes))
    subjects = {"records": base, "decoded": base.with_model(decoding)}
    eager = base.with_config(replace(base.config, recorded_steps=False, max_chunk_tokens=33))
    asked, documents = requests(12, 150, 48), _uneven()[:24]
    told = {name: said(llm, asked)[0] for name, llm in subjects.items()}
    told["eager chunks of 33"] = said(eager, asked)[0]
    scored = {name: _scored(llm, documents) for name, llm in subjects.items()}
    wrong = [name for name, one in told.items() if one != told["decoded"]]
    wrong += ["scores"] * (scored["records"] != scored["decoded"])
    page = ["| bundled model | records | decoded | ratio |", "|---|---|---|---|"]
    figures: dict[str, dict[str, float]] = {}
    for batch in BATCHES[-1:] if is_short else BATCHES:
        for length in (128, 1500):
            given = [
                GenerateRequest(
                    request_id=f"{i}",
                    token_ids=ids,
                    params=SamplingParams(temperature=0.0, seed=3, max_tokens=40, ignore_eos=True),
                )
                for i, ids in enumerate(prompts(batch, length))
            ]
            name = f"ms a turn, batch {batch}, {length} tokens"
            figures[name] = {which: gap_of(llm._core, given)[1] for which, llm in subjects.items()}
    rounds = [(which, scoring_speed(llm)) for _ in range(2) for which, llm in subjects.items()]
    figures["tokens scored a second"] = {
        which: max(value for one, value in rounds if one == which) for which in subjects
    }
    page += [
        f"| {n} | {f['records']:.3f} | {f['decoded']:.3f} | {f['records'] / f['decoded']:.3f} |"
        for n, f in figures.items()
    ]
    seen = f"unlike decoded: {wrong or 'none'}; " + "; ".join(
        f"{name} {f['records']:.3f} for {f['decoded']:.3f}" for name, f in figures.items()
    )
    return {"verdict": "DIFFER" if wrong else "equal", "seen": seen, "page": page, "figures": figures}


def _tokens(core: EngineCore, asked: Sequence[GenerateRequest]) -> list[tuple[Any, ...]]:
    """Everything that was said, in an order that is the requests' own."""
    said = []
    for request in asked:
        core.add(request)
    while core.has_unfinished:
        said += [(r.request_id, r.position, r.token_id, r.raw_logprob) for r in core.step()]
    return sorted(said)


def released_records(config: EngineConfig, batch: int = 64, length: int = 2048) -> dict[str, Any]:
    """Released widths, random weights: turns of a batch = eager chunks alone; times of both ways."""
    device = torch.device(config.device.value)
    ops = select_ops(config.backend, bf16=True, device=device.type)
    model = Transformer(RandomCheckpoint(stack_config(max_position_embeddings=8192), device), ops)
    draw = torch.Generator().manual_seed(0)
    params = SamplingParams(temperature=0.0, seed=7, max_tokens=24, ignore_eos=True)

    def drawn(count: int, size: int) -> list[GenerateRequest]:
        ids = torch.randint(10, 120000, (count, size), generator=draw).tolist()
        return [
            GenerateRequest(request_id=f"r{i}", token_ids=one, params=params) for i, one in enumerate(ids)
        ]

    few = drawn(5, 300)
    crowd = _tokens(stack_core(config, model, 5, 4), few)
    eager = replace(config, recorded_steps=False, asynchronous=False)
    alone = []
    for request in few:
        alone += _tokens(stack_core(eager, model, 1, 4, max_chunk=77), [request])
    is_equal = crowd == sorted(alone)
    figures, started = {}, time.perf_counter()
    asked = drawn(batch, length)
    for name, one in (("records", model), ("decoded", decoding(model))):
        core = stack_core(config, one, batch, length // 128 + 2)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        figures[name] = gap_of(core, asked)[1]
        figures[f"{name}, GiB"] = (torch.cuda.max_memory_allocated() - before) / 2**30
        del core
    seen = (
        f"5 sequences of 300 tokens in turns = alone in eager chunks of 77: {is_equal}; batch {batch} at "
        f"{length} tokens, ms a turn and working memory: {figures}, {time.perf_counter() - started:.0f} s"
    )
    return {"verdict": "equal" if is_equal else "DIFFER", "seen": seen, "figures": figures}


def attention_kernel(rows: Sequence[int] = (1, 16, 64, 8192)) -> dict[str, Any]:
    """Attention of the bundled shape alone, over records and decoded rows: us a call."""
    heads, width, per, slots = 4, 128, 64, 64
    draw = torch.Generator("cuda").manual_seed(5)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=draw, device="cuda", dtype=torch.int32)

    def records(kind: str, groups: int, size: int, codes: int, scales: int) -> BoundRecords:
        found = whole(100, groups, size, codes + scales).to(torch.uint8)
        return bind_records(kind, width, found[..., :codes], found[..., codes:])

    window, main = records("mxfp8", 9000, 1, width, width // 32), records("fp4", 512, per, 64, width // 16)
    sink, page, seen, unequal = (
        torch.zeros(heads, device="cuda"),
        ["| rows | rows of | us |", "|---|---|---|"],
        [],
        0,
    )
    for count in rows:
        q = torch.randn(count, heads, width, generator=draw, device="cuda").to(torch.bfloat16).float()
        near, far = whole(9000, count, slots), whole(16 * per, count, slots)
        pages = PagedRecords(main, whole(512, count, 16), per)
        given = (q, window, near, pages, far, sink)
        decoded = [
            load_records(r, torch.arange(n, device="cuda")) for r, n in ((window, 9000), (main, 512 * per))
        ]
        places = record_chains.records_of(pages, far)
        calls = {
            "decoded": partial(pool_attention.sparse_attention, q, decoded[0], near, decoded[1], places, sink)
        }
        calls |= {f"{n} stages": partial(pool_attention.attend_records, *given, stages=n) for n in (1, 2, 3)}
        wanted = calls["decoded"]()
        for name, call in calls.items():
            unequal += int((call().view(torch.int32) != wanted.view(torch.int32)).sum())
            us = timed([call], 20 if count < 1000 else 4) * 1e6
            page.append(f"| {count} | {name} | {us:.2f} |")
            seen.append(f"{count} {name} {us:.2f}")
    verdict = "DIFFER" if unequal else "equal"
    return {"verdict": verdict, "seen": f"unequal {unequal}; us: {', '.join(seen)}", "page": page}
