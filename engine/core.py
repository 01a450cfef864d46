"""The engine loop: plan a step, run it, sample, hand out records; requests join and leave between steps."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence as Items

from deepinfer.engine.api import (
    FinishReason,
    GenerateRequest,
    RequestFailure,
    ScoreRequest,
    TokenRecord,
)
from deepinfer.engine.asynchrony import Runner, runner_of
from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.cache.caches import Caches, CacheShape, default_ring
from deepinfer.engine.convoy import Convoy, convoy_of
from deepinfer.engine.convoy_loop import Loop
from deepinfer.engine.core_config import CoreConfig as CoreConfig
from deepinfer.engine.core_config import Observer as Observer
from deepinfer.engine.emission import Ending, ending, terminal_record, token_records
from deepinfer.engine.flight import InFlight, Landed
from deepinfer.engine.launcher import Launcher
from deepinfer.engine.logprobs import ScoreSheet
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.prefixes import Prefixes
from deepinfer.engine.requests import checked_ids
from deepinfer.engine.sampling_rules import validate
from deepinfer.engine.scheduler import Scheduler, Share
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.buckets import MAX_ROWS
from deepinfer.engine.speculation.control import SpeculationControl
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.policy import draft_policy
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.speculation.unseen import Unseen
from deepinfer.engine.step_plan import BLOCK_TOKENS, Int64, blocks_for
from deepinfer.engine.step_run import Answer, StepResult
from deepinfer.engine.turns.turn_run import TurnRun


class EngineCore:
    """Runs generate requests with continuous batching on one set of caches."""

    def __init__(
        self, model: Transformer, rule: PrefillRule, config: CoreConfig, drafter: Drafter | None = None
    ) -> None:
        """Allocate the caches; ``drafter`` is needed, and used, if the configuration speculates."""
        self.model, self.rule, self.config = model, rule, config
        self.speculation: SpeculationControl | None = None
        if drafter is not None and config.speculation.is_on:
            policy = draft_policy(config.speculation, model.config, model.ops)
            self.speculation = SpeculationControl(drafter, policy, model.config.dspark_block_size)
        self.pool = BlockPool(config.num_blocks)
        ring = default_ring(model.config)
        if config.asynchronous and self.speculation:
            ring += model.config.dspark_block_size + 1  # a turn may start before block ends are saved
        shape = CacheShape(
            num_blocks=config.num_blocks,
            num_slots=config.limits.max_sequences,
            ring=ring,
            draft_ring=ring if self.speculation and self.speculation.drafter.reads_features else 0,
            max_drafts=model.config.dspark_block_size if self.speculation else 0,
            exact=not model.ops.round_caches,
        )
        self.caches = Caches(model.config, shape, model.ops.device, model.ops.copy_rows_)
        self.prefixes = Prefixes.of(self.pool, self.caches, rule, config)
        self.scheduler = Scheduler(
            limits=config.limits,
            pool=self.pool,
            num_blocks=config.num_blocks,
            admit=self.prefixes.resume,
            draft_policy=None if self.speculation is None else self.speculation.policy,
        )
        self.max_length = min(model.config.max_position_embeddings, config.num_blocks * BLOCK_TOKENS)
        self.launcher = Launcher(
            model,
            rule,
            self.caches,
            self.caches.layout(model.history_length),
            None if self.speculation is None else self.speculation.drafter,
            self.prefixes.num_layers,
        )
        if config.graphs:
            longest = self.max_length + model.config.dspark_block_size + 1
            self.launcher.record(longest, blocks_for(longest))
        self.observe: Observer | None = None
        self._live: dict[tuple[str, int], Sequence] = {}
        self._num_added = 0
        self._runner: Runner = runner_of(model.ops.device.type, config.asynchronous)
        self._flights: deque[InFlight] = deque()
        self._convoy: Convoy | None = None

    @property
    def has_unfinished(self) -> bool:
        """Whether any sample still waits or runs."""
        return bool(self._live)

    def add(self, request: GenerateRequest) -> RequestFailure | None:
        """Queue a request; a bad one is refused with a reason and leaves no trace."""
        ids = checked_ids(request, self.model.config)
        if isinstance(ids, RequestFailure):
            return ids
        reason = validate(request.params, self.model.config.vocab_size)
        if (request.request_id, 0) in self._live:
            reason = "a request of this name is running; names must be unique"
        if reason is None and not self.scheduler.fits(len(ids) + 1):
            reason = (
                f"{len(ids)} tokens do not fit {self.config.num_blocks} cache blocks of {BLOCK_TOKENS}; "
                "allow more blocks"
            )
        if reason is not None:
            return RequestFailure(request_id=request.request_id, reason=f"{request.request_id}: {reason}")
        seed = secrets.randbits(64) if request.params.seed is None else request.params.seed
        for index in range(request.params.n):
            most = min(len(ids) + request.params.max_tokens, self.max_length + 1)
            sheet = self._sheet(request, ids)
            sequence = Sequence(request, self._num_added, seed, index, ids, most, sheet)
            self._num_added += 1
            self._live[sequence.key] = sequence
            self.scheduler.add(sequence)
        return None

    def _sheet(self, request: GenerateRequest, ids: Int64) -> ScoreSheet | None:
        if not request.prompt_logprobs:
            return None
        asked = ScoreRequest(request_id=request.request_id, token_ids=request.token_ids)
        return ScoreSheet(asked, ids, self.rule.low(len(ids)) + 1, self.model.config.vocab_size)

    def abort(self, request_id: str) -> list[TokenRecord]:
        """End all samples of a request now; one terminal record each, none for an unknown name."""
        self._tell()
        ended = [sequence for key, sequence in self._live.items() if key[0] == request_id]
        records = [terminal_record(sequence, FinishReason.ABORT) for sequence in ended]
        for sequence in ended:
            self._forget(sequence, FinishReason.ABORT)
        self._land_all_if_idle()
        return records

    def sequence(self, request_id: str, sample_index: int) -> Sequence | None:
        """A live sample, for statistics."""
        self._tell()
        return self._live.get((request_id, sample_index))

    def step(self) -> Items[TokenRecord]:
        """Run one step; returns the tokens that it emitted, in packed order.

        If the engine is asynchronous, the next step has started when this returns.
        """
        records: Items[TokenRecord] | None = None
        if self._convoy is not None and self.observe is None:
            records = self._convoy.step()
        if records is None:
            self._tell()
            records = self._step()
            self._convoy = self._formed()
        self._land_all_if_idle()
        return records

    def _formed(self) -> Convoy | None:
        """A convoy of those that decode, if there is nothing else to do."""
        turns = self.launcher.turns
        if turns is None or self.observe is not None or not self._runner.is_asynchronous:
            return None
        if len(self.scheduler.running) < self.config.fewest_in_convoy:
            return None
        return convoy_of(
            Loop(
                turns=turns,
                runner=self._runner,
                scheduler=self.scheduler,
                speculation=self.speculation,
                flights=self._flights,
                saved=self.launcher.turn_layers,
                eos_token_id=self.model.config.eos_token_id,
                max_length=self.max_length,
                fewest=self.config.fewest_in_convoy,
                forget=self._forget,
                remember=self.prefixes.remember,
            )
        )

    def _tell(self) -> None:
        """End the convoy, so that its sequences know everything."""
        if self._convoy is not None:
            self._convoy.tell()
            self._convoy = None

    def _step(self) -> Items[TokenRecord]:
        if not self._flights and not self._launch(self.scheduler.next_step() or []):
            return []
        ahead = self.scheduler.next_step() if self._runner.is_asynchronous else None
        has_followed = bool(ahead) and self._follow(ahead or [])
        landed = self._land()
        if ahead and not has_followed:
            has_followed = self._launch([share for share in ahead if not share.sequence.is_over])
        self.scheduler.stats.num_ahead += has_followed
        return self._settle(landed)

    def _land_all_if_idle(self) -> None:
        while self._flights and not self._live:
            self._land()

    def _follow(self, planned: Items[Share]) -> bool:
        """Start a step before the one in flight has landed, if both are turns; false if it has to wait."""
        turns = self.launcher.turns
        if turns is None or self.observe is not None or not self._flights[-1].is_turn:
            return False
        drafting, unseen = self._drafting(planned), Unseen(0)
        if self.speculation is not None and self._flights[-1].drafting is Drafting.ON:
            sequences = [share.sequence for share in planned]
            unseen = self.speculation.policy.unseen(sequences, self._flights[-1].num_drafted)
        num_drafts = len(planned) * unseen.most if unseen.total is None else unseen.total
        if len(planned) + num_drafts > min(self.config.limits.max_rows, MAX_ROWS):
            return False
        if not turns.can_follow(planned, drafting):
            return False
        shares = self.scheduler.add_unseen_drafts(planned, unseen.most)
        return self._start(tuple(shares), drafting, unseen.total)

    def _drafting(self, shares: Items[Share]) -> Drafting:
        return Drafting.PAUSED if self.speculation is None else self.speculation.mode(shares)

    def _launch(self, planned: Items[Share]) -> bool:
        """Start a step; false if there is nothing to do."""
        shares = tuple(self.scheduler.add_drafts(planned))
        if not shares:
            return False
        return self._start(shares, self._drafting(shares), None)

    def _start(self, shares: tuple[Share, ...], drafting: Drafting, num_shared_out: int | None) -> bool:
        num_drafted = 0
        if drafting is Drafting.ON and self.speculation is not None:
            num_drafted = self.speculation.policy.block(len(shares))
        work = self.launcher.ready(shares, drafting, num_drafted, self.observe is not None, num_shared_out)
        num_drafts = 0
        for sequence, num_rows, mine, _ in shares:
            sequence.num_in_flight += num_rows
            sequence.num_drafts_in_flight += mine
            num_drafts += mine
        num_drafts = num_drafts if num_shared_out is None else num_shared_out
        is_turn = isinstance(work, TurnRun)
        wait = self._runner.start(work)
        self._flights.append(InFlight(shares, num_drafts, drafting, num_drafted, wait, is_turn))
        return True

    def _land(self) -> Landed:
        """Wait for the step that was started first; what ended sequences held is free then."""
        flight = self._flights.popleft()
        try:
            landed = flight.land()
        finally:
            self.scheduler.land()
        if self.speculation is not None:
            self.speculation.landed(flight.shares, flight.drafting, flight.num_drafts, landed.result)
        return landed

    def _settle(self, landed: Landed) -> list[TokenRecord]:
        """Hand out the tokens of a step that has landed, and end the sequences that they end."""
        result, answers, eos, longest = (
            landed.result, landed.answers, self.model.config.eos_token_id, self.max_length
        )  # fmt: skip
        ends = [ending(answer, eos, longest) for answer in answers]
        if self.config.prefix_caching and result.boundaries:
            computed = {id(share.sequence): share.sequence.num_computed for share in landed.live}
            for answer, end in zip(answers, ends, strict=True):
                computed[id(answer.share.sequence)] = end.num_computed
            self.prefixes.remember(result.boundaries, computed)
        if self.observe is not None:
            self._show(self.observe, answers, ends, result)
        if result.sampled is None:
            return []
        records = token_records(answers, ends, result.sampled)
        for answer, end in zip(answers, ends, strict=True):
            if end.reason is not None:
                self._forget(answer.share.sequence, end.reason)
        return records

    @staticmethod
    def _show(observe: Observer, answers: Items[Answer], ends: Items[Ending], result: StepResult) -> None:
        """Hand the logits of what is given out to whoever looks on."""
        for answer, end in zip(answers, ends, strict=True):
            assert result.logits is not None, "there is an answer"
            sequence, first = answer.share.sequence, end.num_computed + 1 - end.num_tokens
            for number in range(end.num_tokens):
                row = result.logits[answer.first_row + number].cpu().numpy().copy()
                observe(sequence, first + number, row)

    def _forget(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self.scheduler.release(sequence)
        del self._live[sequence.key]
