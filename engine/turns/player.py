"""Which steps are turns, and what it takes to play them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.scheduler import Share
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.buckets import MAX_ROWS
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.step_records import StepLayout
from deepinfer.engine.turns.device_turn import DeviceTurn
from deepinfer.engine.turns.host_table import HostTable
from deepinfer.engine.turns.recordings import TurnRecordings
from deepinfer.engine.turns.table import TurnColumns, TurnShape
from deepinfer.engine.turns.turn_run import TurnRun
from deepinfer.kernels.turn_operands import TurnState


@dataclass(frozen=True)
class TurnPlayer:
    """Plays turns on one set of caches."""

    turn: DeviceTurn
    table: HostTable
    recordings: TurnRecordings

    @classmethod
    def of(
        cls,
        model: Transformer,
        rule: PrefillRule,
        caches: Caches,
        layout: StepLayout,
        drafter: Drafter | None,
        max_blocks: int,
    ) -> TurnPlayer | None:
        """None if the Engram tables have to stay on the host; ``max_blocks`` of a sequence."""
        engrams = model.device_engrams or model.engrams_on(model.ops.device)
        if engrams is None:
            return None
        slots = caches.shape.num_slots
        state = TurnState.empty(slots, layout.history, layout.max_drafts, model.ops.device)
        turn = DeviceTurn(model, caches, layout, rule, engrams, state, drafter)
        return cls(turn, HostTable(slots, max_blocks, layout, rule), TurnRecordings(turn))

    @property
    def num_recorded(self) -> int:
        """Graphs there are."""
        return self.recordings.num_recorded

    def can_play(self, shares: Items[Share]) -> bool:
        """Whether all decode, few enough, and none adds a bias to its logits."""
        num_rows = len(shares)
        for sequence, known, num_drafts, is_complete in shares:  # asked twice a step: without a call for each
            if not is_complete or known != 1 or sequence.request.params.logit_bias:
                return False
            num_rows += num_drafts
        return num_rows <= MAX_ROWS

    def can_follow(self, shares: Items[Share], drafting: Drafting) -> bool:
        """Whether they can be a turn that is launched before the turn ahead of it has landed."""
        drafter = self.turn.drafter
        if drafting is Drafting.ON and drafter is not None and not drafter.drafts_in_turn:
            return False
        for sequence, *_ in shares:
            if sequence.request.params.num_logprobs:
                return False
        return self.can_play(shares)

    def ready(
        self,
        shares: tuple[Share, ...],
        drafting: Drafting,
        num_drafted: int,
        saved: tuple[int, bool],
        keeps_logits: bool,
        num_shared_out: int | None,
    ) -> TurnRun:
        """A turn of these shares.

        ``saved`` says which rings are kept at block ends, see ``TurnRun``; ``num_drafted`` how many drafts it
        makes of each sequence, ``num_shared_out`` how many the device shares out, see ``HostTable``.
        """
        turn = self.turn
        is_left = [share[0].num_in_flight > 0 for share in shares]
        asks_host = turn.drafter is not None and not turn.drafter.drafts_in_turn
        vocab_size = turn.model.config.vocab_size
        shape, table = self.table.of(
            shares,
            drafting,
            0 if asks_host else num_drafted,
            vocab_size,
            is_left,
            num_shared_out,
            self.recordings.shape_of,
        )
        return self._run(shares, shape, table, num_drafted, saved, keeps_logits)

    def refresh(self, sequence: Sequence) -> None:
        """The blocks of a sequence have changed, see ``HostTable``."""
        self.table.refresh(sequence, self.turn.model.config.vocab_size)

    def ready_left(
        self,
        shares: tuple[Share, ...],
        columns: TurnColumns,
        drafting: Drafting,
        num_drafted: int,
        num_shared_out: int | None,
        saved: tuple[int, bool],
    ) -> TurnRun:
        """A turn of sequences that the one before leaves on the device, as it does drafts; see ``ready``."""
        shape, table = self.table.filled(
            columns, drafting, num_drafted, num_shared_out, self.recordings.shape_of
        )
        return self._run(shares, shape, table, num_drafted, saved, False)

    def _run(
        self,
        shares: tuple[Share, ...],
        shape: TurnShape,
        table: Int64,
        num_drafted: int,
        saved: tuple[int, bool],
        keeps_logits: bool,
    ) -> TurnRun:
        turn = self.turn
        drafter = turn.drafter
        asks_host = drafter is not None and not drafter.drafts_in_turn
        return TurnRun(
            recordings=self.recordings,
            ops=turn.model.ops,
            caches=turn.caches,
            eos_token_id=turn.model.config.eos_token_id,
            shares=shares,
            shape=shape,
            table=table,
            drafter=drafter if asks_host else None,
            num_drafted=num_drafted,
            num_snapshot_layers=saved[0],
            with_drafts=saved[1],
            keeps_logits=keeps_logits,
        )
