"""Small traces with drafts that are half right, and what a core's prefix tree knows after them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from trace_play import Trace, alone, check, core_of

from deepinfer.engine.api import GenerateRequest, PrefillMode, SamplingParams
from deepinfer.engine.core import CoreConfig, EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.scheduler import Limits
from deepinfer.engine.speculation.options import Speculation, SpeculationPolicy

FIXED = Speculation(policy=SpeculationPolicy.FIXED)
LIMITS = Limits(max_rows=64, max_chunk=None, max_sequences=4)


def requests(count: int = 3, max_tokens: int = 16, length: int = 118) -> tuple[GenerateRequest, ...]:
    """Greedy and seeded prompts whose outputs cross the end of a block."""
    draw = np.random.default_rng(0)
    return tuple(
        GenerateRequest(
            request_id=f"r{i}",
            token_ids=draw.integers(4, 500, length + i).tolist(),
            params=SamplingParams(
                temperature=float(i % 2), seed=5 + i, max_tokens=max_tokens, ignore_eos=True, num_logprobs=2
            ),
        )
        for i in range(count)
    )


def trace(mode: PrefillMode = PrefillMode.OFF, **core: object) -> Trace:
    config = CoreConfig(limits=LIMITS, num_blocks=12, speculation=FIXED)
    return Trace(mode, replace(config, **core), requests(), (0, 0, 2), {})


def tree_of(core: EngineCore) -> dict[tuple[bytes, ...], dict[int, bytes]]:
    """Every path of the prefix tree with the state kept at its end."""
    found = {}
    for block in core.prefixes.tree._edge_to:
        path, node = [], block
        while node:
            node, key = core.prefixes.tree._edge_to[node]
            path.append(key)
        rings = core.prefixes.tree._snapshots[block].rings if block in core.prefixes.tree._snapshots else {}
        found[tuple(reversed(path))] = {n: ring.numpy().tobytes() for n, ring in rings.items()}
    return found


def finished(llm: LLM, config: CoreConfig, given: tuple[GenerateRequest, ...]) -> EngineCore:
    """A core after it has answered; drafts are half right."""
    played = Trace(PrefillMode.OFF, config, given, (0,) * len(given), {})
    core = core_of(llm, played)
    check(llm, played, core)
    return core


def stopping(llm: LLM, place: int) -> tuple[GenerateRequest, int]:
    """A request that meets something to stop at after ``place`` tokens, and the token there."""
    request = requests(2)[1]
    records, _ = alone(llm, PrefillMode.OFF, request, 0)
    token = records[place].token_id
    assert token is not None
    return request, token
