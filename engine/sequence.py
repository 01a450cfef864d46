"""A sequence inside the engine: its tokens, how far its caches reach, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.api import GenerateRequest
from deepinfer.engine.logprobs import ScoreSheet
from deepinfer.engine.step_plan import Chunk, Int64, blocks_for


@dataclass
class Sequence:
    """One sample of a request.

    Attributes:
        request: what was asked.
        order: arrival number; ties are broken by it.
        seed: 64-bit seed of its draws.
        sample_index: which of the request's n samples.
        prompt: int64 [N], the prompt.
        sheet: scores of the prompt as they come, None if nobody asked for them.
        output_ids: tokens emitted so far.
        num_computed: positions whose caches are valid.
        blocks: block table, in order.
        slot: state slot, -1 while it holds none.
        finish_reason: empty while unfinished.
        num_hit_tokens: positions that a prefix hit spared, over all admissions.
        num_preemptions: how often it lost its caches.
    """

    request: GenerateRequest
    order: int
    seed: int
    sample_index: int
    prompt: Int64
    sheet: ScoreSheet | None = None
    output_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    finish_reason: str = ""
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    _known: Int64 = field(init=False)

    def __post_init__(self) -> None:
        """Keep all known ids in one array that grows by doubling: a step reads it without a copy."""
        self._known = self.prompt

    @property
    def prompt_length(self) -> int:
        """N of the prefill mode; preemption and resumption keep it."""
        return len(self.prompt)

    @property
    def num_tokens(self) -> int:
        """Known ids: prompt and output."""
        return len(self.prompt) + len(self.output_ids)

    @property
    def token_ids(self) -> Int64:
        """All known ids, int64 [num_tokens]; a view, not to be written."""
        return self._known[: self.num_tokens]

    def append(self, token_id: int) -> None:
        """Take a sampled token."""
        place = self.num_tokens
        if place == len(self._known):
            self._known = np.concatenate([self._known, np.empty_like(self._known)])
        self._known[place] = token_id
        self.output_ids.append(token_id)

    @property
    def num_remaining(self) -> int:
        """Known positions still to compute."""
        return self.num_tokens - self.num_computed

    @property
    def num_emitted(self) -> int:
        """Tokens sampled so far."""
        return len(self.output_ids)

    @property
    def num_missing_blocks(self) -> int:
        """Blocks it lacks for all its known tokens."""
        return max(0, blocks_for(self.num_tokens) - len(self.blocks))

    @property
    def key(self) -> tuple[str, int]:
        """Name of the sample in outputs."""
        return self.request.request_id, self.sample_index

    def chunk(self, num_rows: int) -> Chunk:
        """The next ``num_rows`` positions as a chunk of a step."""
        return Chunk(
            token_ids=self.token_ids,
            start=self.num_computed,
            end=self.num_computed + num_rows,
            prompt_length=self.prompt_length,
            slot=self.slot,
            blocks=np.array(self.blocks, np.int64),
        )
