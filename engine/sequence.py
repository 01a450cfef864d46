"""A sequence inside the engine: its tokens, how far its caches reach, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.api import GenerateRequest
from deepinfer.engine.step_plan import Chunk, Int64, blocks_for


@dataclass
class Sequence:
    """One sample of a request.

    Attributes:
        request: what was asked.
        order: arrival number; ties are broken by it.
        seed: 64-bit seed of its draws.
        sample_index: which of the request's n samples.
        token_ids: prompt, then emitted tokens.
        prompt_length: N of the prefill mode; preemption and resumption keep it.
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
    token_ids: list[int]
    prompt_length: int
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    finish_reason: str = ""
    num_hit_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_remaining(self) -> int:
        """Known positions still to compute."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_emitted(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.prompt_length

    @property
    def num_missing_blocks(self) -> int:
        """Blocks it lacks for all its known tokens."""
        return max(0, blocks_for(len(self.token_ids)) - len(self.blocks))

    @property
    def key(self) -> tuple[str, int]:
        """Name of the sample in outputs."""
        return self.request.request_id, self.sample_index

    def chunk(self, num_rows: int) -> Chunk:
        """The next ``num_rows`` positions as a chunk of a step."""
        ids: Int64 = np.array(self.token_ids, np.int64)
        return Chunk(
            token_ids=ids,
            start=self.num_computed,
            end=self.num_computed + num_rows,
            prompt_length=self.prompt_length,
            slot=self.slot,
            blocks=np.array(self.blocks, np.int64),
        )
