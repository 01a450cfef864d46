"""A whole turn as one piece of device work: plan, layers, sampling, acceptance, next drafts, new state.

Every value that differs between turns of a shape is read from the table or the state, so the work can be
recorded. What a token is never depends on anything here but the rules of ``step_run``: row j of a sequence
draws the words of its own position, and a draft is accepted if it is what was drawn in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from deepinfer.engine.batch import Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.choices import PrefillMode
from deepinfer.engine.model.draft import Anchors
from deepinfer.engine.model.engram_device import DeviceEngrams
from deepinfer.engine.model.transformer import Hidden, Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.sampler import NUM_WORDS
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_records import StepLayout
from deepinfer.engine.turns.rows import turn_form, turn_step
from deepinfer.engine.turns.table import TurnShape
from deepinfer.kernels.turn_operands import TurnFound, TurnPlan, TurnState


@dataclass(frozen=True)
class DeviceTurn:
    """What turns are made of."""

    model: Transformer
    caches: Caches
    layout: StepLayout
    rule: PrefillRule
    engrams: DeviceEngrams
    state: TurnState
    drafter: Drafter | None

    def run(self, table: torch.Tensor, shape: TurnShape) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a turn; its outcome packed (``Outcome``), and its logits float32 [T, V]."""
        ops = self.model.ops
        form = turn_form(shape, self.layout, self.rule.window, self.rule.mode is not PrefillMode.OFF)
        plan = ops.plan_turn(table, self.state, form)
        step = turn_step(plan, shape, table)
        view = StepView(self.caches, step, ops)
        drafter = None if shape.drafting is Drafting.PAUSED else self.drafter
        reads_features = drafter is not None and drafter.reads_features
        memories = ops.beside(partial(self.engrams.look_up, plan.recent), shape.num_rows)
        words = ops.beside(partial(self._words, plan), shape.num_rows)
        hidden = self.model.forward(step, view, reads_features, memories=memories)
        remembered = self._remember(drafter, hidden, step, view)
        logits = self.model.logits(hidden.normed)
        ids, processed = self._draw(plan, logits, words())
        scored = ops.beside(lambda: ops.token_logprobs(logits, ids.clamp(min=0)), shape.num_rows)
        end = ops.end_turn(table, plan, ids, form)
        remembered()
        drafts, confidences = end.golden[:, None][:, :0], processed[:, None][:0, :0]
        if drafter is not None and shape.drafting is Drafting.ON and drafter.drafts_in_turn:
            anchors = Anchors(end.golden, end.anchor, end.slot, end.low)
            ahead = drafter.block(anchors, self.caches, shape.num_drafted)
            drafts, confidences = ahead.tokens[:, 1:], ahead.confidences
        raw, _ = scored()
        found = TurnFound(ids=ids, raw=raw, processed=processed, drafts=drafts, confidences=confidences)
        return ops.leave_turn(plan, end, found, self.state, form), logits

    def _remember(
        self, drafter: Drafter | None, hidden: Hidden, step: Step, view: StepView
    ) -> Callable[[], None]:
        """Keep what drafting needs of the rows, beside the sampling; what comes back waits for it."""
        features = hidden.features
        if drafter is None or features is None:
            return lambda: None
        remember = partial(drafter.remember, features, step, view)
        return self.model.ops.beside(remember, len(features))

    def _words(self, plan: TurnPlan) -> torch.Tensor:
        """Random words of every row's position."""
        return self.model.ops.random_words(plan.seeds, plan.following, plan.samples, NUM_WORDS)

    def _draw(
        self, plan: TurnPlan, logits: torch.Tensor, words: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for every row, under the rules of its sequence and the words of its position."""
        return self.model.ops.sample(logits, plan.temperature, plan.top_p, plan.top_k, plan.min_p, words)
