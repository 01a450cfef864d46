"""Turns in tests: recordings without CUDA, a drafter that knows the truth, turns that go to a queue."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import torch
from speculation_play import requests, trace
from trace_play import Trace, alone, core_of, packed

from deepinfer.engine.api import GenerateRequest, PrefillMode, TokenRecord
from deepinfer.engine.asynchrony import Queue
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.draft import Anchors
from deepinfer.engine.speculation.drafter import ModelDrafter
from deepinfer.engine.speculation.options import Speculation
from deepinfer.engine.turns.recordings import Result, TurnRecordings, Work
from deepinfer.kernels.draft_operands import DraftOutput


class Recorder:
    """Stands for CUDA: what is captured runs anew at each play, and its results lie where they first lay."""

    def __init__(self) -> None:
        self.num_plays = 0

    def __call__(self, work: Work) -> Work:
        places: list[Result] = []

        def again() -> Result:
            self.num_plays += 1
            result = work()
            if not places:
                places.append(result)
            for place, part in zip(places[0], result, strict=True):
                place.copy_(part)
            return places[0]

        return again


def recorded_core(llm: LLM, trace: Trace) -> tuple[EngineCore, Recorder]:
    core, recorder = core_of(llm, replace(trace, core=replace(trace.core, graphs=True))), Recorder()
    turns = core.launcher.turns
    assert turns is not None
    core.launcher.turns = replace(turns, recordings=TurnRecordings(turns.turn, recorder))
    return core, recorder


class Oracle(ModelDrafter):
    """Drafts on the device what really comes next, as far as a number says that position and slot decide.

    Sequence i holds slot i as long as all are admitted at once.
    """

    def __init__(self, llm: LLM, truth: torch.Tensor) -> None:
        super().__init__(llm._draft, llm.rule)
        self._truth, self._confidence = truth, torch.full((1, 5), 0.5)

    def block(self, anchors: Anchors, caches: Caches, num_drafts: int) -> DraftOutput:
        ahead = anchors.positions[:, None] + torch.arange(1, 6)
        wanted = self._truth[anchors.slots[:, None], ahead.clamp(max=self._truth.shape[1] - 1)]
        right = (anchors.positions * 7 + anchors.slots) % 6
        wrong = torch.arange(5) >= right[:, None]
        tokens = torch.where(wrong, (wanted + 1) % 512, wanted)
        nothing = torch.empty(0)
        sure = self._confidence.expand(len(tokens), 5)[:, :num_drafts].contiguous()
        known = torch.cat([anchors.golden[:, None], tokens[:, :num_drafts]], 1)
        return DraftOutput(
            hidden=nothing,
            base_logits=nothing,
            tokens=known,
            logits=nothing,
            confidence_logits=sure,
            confidences=sure,
        )


def plain(count: int, longest: int) -> tuple[GenerateRequest, ...]:
    """Requests without alternatives, half of them greedy, which end at different lengths."""
    return tuple(
        replace(r, params=replace(r.params, num_logprobs=0, max_tokens=longest - 2 * i, top_k=9 * (i % 3)))
        for i, r in enumerate(requests(count, longest))
    )


def truth_of(llm: LLM, asked: Items[GenerateRequest]) -> tuple[list[list[TokenRecord]], torch.Tensor]:
    """What each says alone in eager steps, and all ids by slot and position."""
    alone_records = [alone(llm, PrefillMode.OFF, request, 0)[0] for request in asked]
    truth = torch.zeros(len(asked), 300, dtype=torch.int64)
    for row, (request, records) in enumerate(zip(asked, alone_records, strict=True)):
        ids = [*request.token_ids, *(record.token_id or 0 for record in records)]
        truth[row, : len(ids)] = torch.tensor(ids)
    return alone_records, truth


def chained_core(
    llm: LLM, truth: torch.Tensor, speculation: Speculation, **changed: Any
) -> tuple[EngineCore, Recorder]:
    """An asynchronous core whose turns go to a queue, as on a device; ``changed`` of its configuration."""
    named = {"speculation": speculation, "asynchronous": True, "graphs": True, "prefix_caching": True}
    config = replace(trace().core, **(named | changed))
    core, recorder = EngineCore(llm._model, llm.rule, config, Oracle(llm, truth)), Recorder()
    core._runner = Queue()
    turns = core.launcher.turns
    assert turns is not None
    core.launcher.turns = replace(turns, recordings=TurnRecordings(turns.turn, recorder))
    return core, recorder


def played(core: EngineCore, asked: Items[GenerateRequest]) -> dict[str, list[bytes]]:
    """All records by request."""
    found: dict[str, list[bytes]] = {request.request_id: [] for request in asked}
    for request in asked:
        assert core.add(request) is None
    for _ in range(200):
        for record in core.step() if core.has_unfinished else ():
            found[record.request_id].append(packed(record))
    assert not core.has_unfinished, "the engine does not finish"
    return found
