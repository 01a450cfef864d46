"""A sequence inside the engine: its tokens, how far its caches reach, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.api import GenerateRequest
from deepinfer.engine.logprobs import ScoreSheet
from deepinfer.engine.speculation.drafts import NO_DRAFTS, Drafts
from deepinfer.engine.step_plan import BLOCK_TOKENS, Chunk, Int64, blocks_for


@dataclass
class Sequence:
    """One sample of a request.

    Attributes:
        request: what was asked.
        order: arrival number; ties are broken by it.
        seed: 64-bit seed of its draws.
        sample_index: which of the request's n samples.
        prompt: int64 [N], the prompt.
        max_tokens: most tokens it can come to, prompt included.
        sheet: scores of the prompt as they come, None if nobody asked for them.
        output_ids: tokens emitted so far.
        num_computed: positions whose caches are valid.
        blocks: block table, in order.
        slot: state slot, -1 while it holds none.
        is_over: whether its last token is known, though its records have not left yet.
        finish_reason: empty while unfinished.
        num_hit_tokens: positions that a prefix hit spared, over all admissions.
        num_preemptions: how often it lost its caches.
        num_in_flight: known rows in the step that runs now; drafted ones are in ``num_drafts_in_flight``.
        drafts: what may follow the known tokens.
        prompt_length: N of the prefill mode; preemption and resumption keep it.
        num_tokens: known ids, prompt and output.
        draft_from: first position whose context the drafter has kept, and all after it.
    """

    request: GenerateRequest
    order: int
    seed: int
    sample_index: int
    prompt: Int64
    max_tokens: int
    sheet: ScoreSheet | None = None
    output_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    is_over: bool = False
    finish_reason: str = ""
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_in_flight: int = 0
    num_drafts_in_flight: int = 0
    drafts: Drafts = NO_DRAFTS
    draft_from: int = 0
    prompt_length: int = field(init=False)
    num_tokens: int = field(init=False)
    _known: Int64 = field(init=False)

    def __post_init__(self) -> None:
        """Keep all known ids in one array that grows by doubling: a step reads it without a copy."""
        self._known = self.prompt
        self.prompt_length = self.num_tokens = len(self.prompt)

    @property
    def token_ids(self) -> Int64:
        """All known ids, int64 [num_tokens]; a view, not to be written."""
        return self._known[: self.num_tokens]

    def take(self, token_ids: Items[int], is_over: bool) -> None:
        """Make sampled tokens known: all but the last one were drafted, so their rows are computed."""
        count, size = len(token_ids), self.num_tokens
        if size + count > len(self._known):
            self._make_room(count)
        if count == 1:  # an element is written in a tenth of the time of a slice
            self._known[size] = token_ids[0]
        else:
            self._known[size : size + count] = token_ids
            self.num_computed += count - 1
        self.output_ids += token_ids
        self.num_tokens = size + count
        self.is_over = is_over

    def take_turns(self, token_ids: Items[int], drafts: Drafts, draft_from: int) -> None:
        """Make the tokens of several turns known, with the drafts behind them; all rows but the last are."""
        self.take(token_ids, False)
        self.num_computed += 1
        self.drafts, self.draft_from = drafts, draft_from

    def _make_room(self, count: int) -> None:
        """Let ``count`` ids fit behind the known ones."""
        if self.num_tokens + count > len(self._known):
            self._known = np.concatenate([self._known, np.empty(len(self._known) + count, np.int64)])

    @property
    def num_remaining(self) -> int:
        """Positions to compute next: known ones outside the step in flight, or the one it will make known."""
        remaining = self.num_tokens - self.num_computed - self.num_in_flight
        return 1 if self.num_in_flight and remaining == 0 else remaining

    @property
    def surely_ends(self) -> bool:
        """Whether the step in flight gives its last token, whatever that is."""
        return self.most_tokens > self.num_tokens and self.num_tokens + 1 >= self.max_tokens

    @property
    def most_tokens(self) -> int:
        """Most tokens that it can have after the step in flight; ``num_tokens`` if it is in none."""
        if self.num_computed + self.num_in_flight < self.num_tokens or not self.num_in_flight:
            return self.num_tokens
        return self.num_tokens + 1 + self.num_drafts_in_flight

    @property
    def num_emitted(self) -> int:
        """Tokens sampled so far."""
        return len(self.output_ids)

    @property
    def num_missing_blocks(self) -> int:
        """Blocks it lacks for all the tokens that it may have when its next step begins."""
        if self.num_tokens + self.num_drafts_in_flight < len(self.blocks) * BLOCK_TOKENS:
            return 0
        return max(0, blocks_for(min(self.most_tokens, self.max_tokens - 1)) - len(self.blocks))

    @property
    def key(self) -> tuple[str, int]:
        """Name of the sample in outputs."""
        return self.request.request_id, self.sample_index

    @property
    def num_useful_drafts(self) -> int:
        """Drafts worth a row: the row before them gives a token anyway, and none may be past the last."""
        return max(0, min(self.drafts.size, self.max_tokens - self.num_tokens - 1))

    def chunk(self, num_rows: int, num_drafts: int = 0) -> Chunk:
        """The next ``num_rows`` known positions and ``num_drafts`` drafts as a chunk of a step."""
        size = self.num_tokens
        self._make_room(num_drafts)
        return Chunk(
            token_ids=self._known[: size + num_drafts],
            start=self.num_computed,
            end=self.num_computed + num_rows + num_drafts,
            prompt_length=self.prompt_length,
            slot=self.slot,
            blocks=np.array(self.blocks, np.int64),
            num_drafts=num_drafts,
            drafts=self.drafts if num_drafts else None,
        )
