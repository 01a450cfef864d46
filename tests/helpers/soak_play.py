"""Traffic of the long comparison: random traces with every way to end, and counts of what was met.

A request may end at a token that it would have drawn anyway, at the end token, at a text that the caller
finds, or by an abort: before it was admitted, in its prompt, while it decodes, while a step is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from trace_play import Trace, alone, core_of, packed, pairs, random_trace, shortened

from deepinfer.engine.api import GenerateRequest
from deepinfer.engine.llm import LLM


@dataclass
class Tally:
    """Counts of one or more traces; a comparison is a token record and the row of logits behind it."""

    traces: int = 0
    requests: int = 0
    samples: int = 0
    rows_compared: int = 0
    record_bytes_compared: int = 0
    differing_records: int = 0
    differing_record_bytes: int = 0
    differing_logits_rows: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    steps_planned_ahead: int = 0
    recordings: int = 0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    aborted: int = 0
    stopped: int = 0
    greedy_requests: int = 0
    chunked_traces: int = 0
    traces_by_speculation: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Sum everything."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, dict):
                for key, count in value.items():
                    mine[key] = mine.get(key, 0) + count
            else:
                setattr(self, name, mine + value)


def soak_trace(llm: LLM, seed: int) -> Trace:
    """Trace ``seed``; three of four are short, so that many requests fit into the time."""
    base = random_trace(seed)
    base = base if seed % 4 == 0 else shortened(base)
    draw = np.random.default_rng([seed, 11])
    requests = tuple(_with_ending(llm, base, request, draw) for request in base.requests)
    clocks = draw.choice(40, size=int(draw.integers(0, 4)), replace=False)
    aborts = {int(clock): str(draw.choice([r.request_id for r in requests])) for clock in clocks}
    return replace(base, requests=requests, aborts=aborts)


def _with_ending(
    llm: LLM, trace: Trace, request: GenerateRequest, draw: np.random.Generator
) -> GenerateRequest:
    kind, params, eos = draw.choice(4), request.params, llm.model_config.eos_token_id
    if kind == 0:  # the end token, likely enough to come, at no place known beforehand
        return replace(request, params=replace(params, ignore_eos=False, logit_bias={eos: 4.0}))
    if kind == 3:
        return request
    said = [record.token_id for record in alone(llm, trace.mode, request, 0)[0]]
    token = said[int(draw.integers(0, len(said)))]
    assert token is not None
    if kind == 1:
        return replace(request, params=replace(params, stop_token_ids=(token,)))
    return replace(request, should_stop=lambda ids: token in ids)


def soaked(llm: LLM, seed: int, recorded: bool = False, own_drafts: bool = False) -> Tally:
    """Play trace ``seed`` and count; what goes wrong is written down, not raised.

    Args:
        recorded: run small steps from recordings; the requests alone are never recorded.
        own_drafts: what the model drafts, where the step is, instead of drafts that are right by a die.
    """
    trace = soak_trace(llm, seed)
    trace = replace(trace, core=replace(trace.core, graphs=recorded))
    core = core_of(llm, trace, own_drafts=own_drafts)
    found = Tally(traces=1, requests=len(trace.requests))
    found.samples = sum(request.params.n for request in trace.requests)
    found.greedy_requests = sum(request.params.temperature == 0 for request in trace.requests)
    found.chunked_traces = int(trace.core.limits.max_chunk is not None)
    mode = f"{trace.core.speculation}{', async' * trace.core.asynchronous}"
    found.traces_by_speculation[mode] = 1
    ends: dict[tuple[str, int], str] = {}
    try:
        for mine, theirs, crowd, single in pairs(llm, trace, core):
            ends[mine.request_id, mine.sample_index] = mine.finish_reason
            one, other = packed(mine), packed(theirs)
            found.rows_compared += 1
            found.record_bytes_compared += len(other)
            found.differing_records += one != other
            found.differing_record_bytes += sum(a != b for a, b in zip(one, other, strict=False))
            found.differing_record_bytes += abs(len(one) - len(other))
            found.differing_logits_rows += crowd != single
    except (AssertionError, KeyError) as error:
        found.failures.append(f"trace {seed}: {type(error).__name__}: {error}"[:500])
    found.stopped = sum(reason == "stop" for reason in ends.values())
    found.aborted = found.samples - sum(bool(reason) for reason in ends.values())
    found.recordings = core.launcher.num_recorded
    found.steps_planned_ahead = core.scheduler.stats.num_ahead
    found.preemptions = core.scheduler.stats.num_preemptions
    found.prefix_hit_tokens = core.prefixes.tree.stats.hit_tokens
    if core.speculation is not None:
        found.accepted_drafts = int(core.speculation.stats.num_accepted.sum())
        found.rejected_drafts = core.speculation.stats.rows_wasted
    return found
