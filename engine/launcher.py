"""Makes the shares of a step ready to run: as a turn if every sequence decodes, else planned on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepinfer.engine.api import PrefillMode
from deepinfer.engine.batch import host_step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.scheduler import Share
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_graphs import StepGraphs
from deepinfer.engine.step_records import StepLayout
from deepinfer.engine.step_run import StepResult, StepRun
from deepinfer.engine.transfer import moved
from deepinfer.engine.turns.player import TurnPlayer


@dataclass
class Launcher:
    """Everything a step needs besides its shares.

    Attributes:
        model, rule, caches, layout: what runs, under which prefill rule, where.
        drafter: None without speculation.
        num_snapshot_layers: layers whose rings a later prompt resumes from.
        graphs, turns: None if nothing is recorded, or cannot be.
    """

    model: Transformer
    rule: PrefillRule
    caches: Caches
    layout: StepLayout
    drafter: Drafter | None
    num_snapshot_layers: int
    graphs: StepGraphs | None = None
    turns: TurnPlayer | None = None

    def record(self, max_positions: int, max_blocks: int) -> None:
        """Run small steps from recordings from now on."""
        if self.model.ops.can_be_recorded:
            self.graphs = StepGraphs(self.model, self.caches, max_positions)
            self.turns = TurnPlayer.of(
                self.model, self.rule, self.caches, self.layout, self.drafter, max_blocks
            )

    @property
    def num_recorded(self) -> int:
        """Graphs there are."""
        return sum(place.num_recorded for place in (self.graphs, self.turns) if place is not None)

    def ready(
        self,
        shares: tuple[Share, ...],
        drafting: Drafting,
        num_drafted: int,
        keeps_logits: bool,
        num_shared_out: int | None = None,
    ) -> Callable[[], StepResult]:
        """Work that runs a step; ``keeps_logits`` for an observer, the numbers as in ``HostTable``."""
        if self.turns is not None and (num_shared_out is not None or self.turns.can_play(shares)):
            return self.turns.ready(
                shares, drafting, num_drafted, self.turn_layers, keeps_logits, num_shared_out
            )
        chunks = [share.sequence.chunk(share.num_rows, share.num_drafts) for share in shares]
        self.model.reserve(max(chunk.end for chunk in chunks))
        host = host_step(chunks, self.rule, self.layout)
        step = moved(host, self.model.ops.device) if self.graphs is None else self.graphs.place(host)
        view = StepView(self.caches, step, self.model.ops, self.num_snapshot_layers)
        return StepRun(self.model, self.drafter, shares, step, view, drafting, num_drafted, self.graphs)

    @property
    def turn_layers(self) -> tuple[int, bool]:
        """Layers whose rings are saved at block ends, and whether those of draft stages are."""
        has_drafts = self.rule.mode is PrefillMode.OFF and bool(self.caches.draft_window)
        return self.num_snapshot_layers, has_drafts
