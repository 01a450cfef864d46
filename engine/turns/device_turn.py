"""A whole turn as one piece of device work: plan, layers, sampling, acceptance, next drafts, new state.

Every value that differs between turns of a shape is read from the table or the state, so the work can be
recorded. What a token is never depends on anything here but the rules of ``step_run``: row j of a sequence
draws the words of its own position, and a draft is accepted if it is what was drawn in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.choices import PrefillMode
from deepinfer.engine.model.draft import Anchors
from deepinfer.engine.model.engram_device import DeviceEngrams
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.sampler import NUM_WORDS
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_records import StepLayout
from deepinfer.engine.turns.constants import TurnConstants
from deepinfer.engine.turns.outcome import Found
from deepinfer.engine.turns.rows import TurnRows, turn_rows, turn_step
from deepinfer.engine.turns.state import TurnState
from deepinfer.engine.turns.table import CONTEXT, FLOOR, HEAT, SAMPLE, SEED, SLOT, TOP_K, TurnShape


@dataclass(frozen=True)
class DeviceTurn:
    """What turns are made of."""

    model: Transformer
    caches: Caches
    layout: StepLayout
    rule: PrefillRule
    engrams: DeviceEngrams
    state: TurnState
    constants: TurnConstants
    drafter: Drafter | None

    def run(self, table: torch.Tensor, shape: TurnShape) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a turn; its outcome packed (``Found.packed``), and its logits float32 [T, V]."""
        rows = turn_rows(table, self.state, shape, self.constants, self.model.ops)
        has_low = self.rule.mode is not PrefillMode.OFF
        step = turn_step(rows, shape, self.layout, self.rule.window, has_low)
        view = StepView(self.caches, step, self.model.ops)
        drafter = None if shape.drafting is Drafting.PAUSED else self.drafter
        reads_features = drafter is not None and drafter.reads_features
        memories = self.engrams.look_up(rows.recent)
        hidden = self.model.forward(step, view, reads_features, memories=memories)
        if drafter is not None and hidden.features is not None:
            drafter.remember(hidden.features, step, view)
        logits = self.model.logits(hidden.normed)
        ids, processed = self._draw(rows, logits)
        raw, _ = self.model.ops.token_logprobs(logits, ids.clamp(min=0))
        accepted, golden = _accepted(rows, ids, shape)
        start = rows.start + accepted + 1
        ahead = None
        if drafter is not None and shape.drafting is Drafting.ON and drafter.drafts_in_turn:
            is_real = rows.count > 0
            anchors = Anchors(
                golden,
                torch.where(is_real, start, self.constants.zero),
                rows.table[:, SLOT].clamp(min=0),
                torch.where(is_real, rows.table[:, CONTEXT], self.constants.zero),
            )
            ahead = drafter.block(anchors, self.caches, shape.num_drafted)
        drafts, confidences = golden[:, None][:, :0], processed[:, None][:0, :0]
        if ahead is not None:
            drafts, confidences = ahead.tokens[:, 1:], ahead.confidences
            # what was not drafted now keeps its old tokens, and nobody is sure of them
            num_old = self.state.sure.shape[1] - confidences.shape[1]
            self.state.sure[rows.place] = torch.nn.functional.pad(confidences, (0, num_old))
        self._leave(rows, shape, accepted, golden, drafts, start)
        found = Found(
            ids=ids,
            raw=raw,
            processed=processed,
            start=rows.start,
            count=rows.count,
            accepted=accepted,
            drafts=drafts,
            confidences=confidences,
        )
        return found.packed(), logits

    def _draw(self, rows: TurnRows, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for every row, under the rules of its sequence and the words of its position."""
        own, ops = rows.own, self.model.ops
        heat = torch.stack([own[:, HEAT], own[:, FLOOR]]).view(torch.float32)
        words = ops.random_words(
            own[:, SEED].contiguous(), rows.positions + 1, own[:, SAMPLE].contiguous(), NUM_WORDS
        )
        temperature, top_p, min_p = heat[0, ::2], heat[0, 1::2], heat[1, ::2]
        return ops.sample(logits, temperature, top_p, own[:, TOP_K].contiguous(), min_p, words)

    def _leave(
        self,
        rows: TurnRows,
        shape: TurnShape,
        accepted: torch.Tensor,
        golden: torch.Tensor,
        drafts: torch.Tensor,
        start: torch.Tensor,
    ) -> None:
        """Write where every sequence stands now."""
        before = shape.history - 1
        line = rows.line
        if before:
            places = accepted[:, None] + self.constants.rows[1 : before + 1]
            line = line.gather(1, places)
        else:
            line = line[:, :0]
        self.state.start[rows.place] = start
        known = torch.cat([line, golden[:, None], drafts], 1)
        self.state.line[rows.place, : known.shape[1]] = known


def _accepted(rows: TurnRows, ids: torch.Tensor, shape: TurnShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Leading drafts that are what was drawn in their place, and the token behind them: int64 [R] each."""
    if shape.width == 1:
        return torch.zeros_like(ids), ids
    number = rows.constants.rows[: shape.width]
    drawn = ids[(rows.first[:, None] + number).clamp(max=shape.num_rows - 1)]
    fed = rows.line[:, shape.history :]
    is_right = (drawn[:, :-1] == fed) & (number[1:] < rows.count[:, None])
    accepted = is_right.to(torch.int64).cumprod(1).sum(1)
    return accepted, drawn.gather(1, accepted[:, None])[:, 0]
