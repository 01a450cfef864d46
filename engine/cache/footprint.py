"""Bytes that a model's caches take: measured on allocated caches, and by the closed formulas.

``measure`` asks live storage, ``ByteFormulas`` knows arithmetic only (model.md section 4.6, engine.md
section 4.1); a test holds the two equal, so that a change of the one is seen by the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from deepinfer.engine.cache.caches import Caches, CacheShape, default_ring
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.step_plan import BLOCK_TOKENS, blocks_for


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of the caches of one model; every record is packed as in model.md section 8.

    Attributes:
        window_record: sliding-window latent of one token in one layer.
        main_record: one compressed latent.
        index_record: one index key.
        per_token: bytes that one more token of context costs, over all layers that own entries.
        block: one block of 128 tokens, over the same layers.
        slot: rings of all layers and compressor state of one request, whatever its length.
    """

    window_record: int
    main_record: int
    index_record: int
    per_token: Fraction
    block: int
    slot: int

    def of_request(self, num_tokens: int) -> int:
        """Bytes that a request of ``num_tokens`` positions holds: its slot and whole blocks."""
        return self.slot + blocks_for(num_tokens) * self.block


def measure(config: ModelConfig, *, exact: bool) -> Footprint:
    """Allocate the smallest caches of a model and count their bytes.

    Args:
        config: the model.
        exact: float32 instead of the released formats.
    """
    shape = CacheShape(num_blocks=1, num_slots=1, ring=default_ring(config), exact=exact)
    caches = Caches(config, shape)
    sources = list(caches.main)
    return Footprint(
        window_record=caches.window[0].record.num_bytes,
        main_record=caches.main[sources[0]].record.num_bytes if sources else 0,
        index_record=caches.index[sources[0]].record.num_bytes if sources else 0,
        per_token=Fraction(caches.bytes_per_block, BLOCK_TOKENS),
        block=caches.bytes_per_block,
        slot=caches.bytes_per_slot,
    )


@dataclass(frozen=True, kw_only=True)
class ByteFormulas:
    """The sizes that the formulas need.

    Attributes:
        width: values of a latent, C.
        index_width: values of an index key.
        source_ratios: compress ratio of each layer that owns entries.
        num_layers: backbone layers, each with a ring.
        ring: window positions that a ring remembers.
        has_fp4_main: whether compressed latents are FP4 with e4m3 scales, else MXFP8.
    """

    width: int
    index_width: int
    source_ratios: tuple[int, ...]
    num_layers: int
    ring: int
    has_fp4_main: bool = True

    @staticmethod
    def of(config: ModelConfig) -> ByteFormulas:
        """The sizes of a model."""
        return ByteFormulas(
            width=config.head_dim,
            index_width=config.index_head_dim,
            source_ratios=tuple(map(config.compress_ratio, config.kv_source_layer_ids)),
            num_layers=config.num_hidden_layers,
            ring=config.sliding_window + config.dspark_block_size + 1,
            has_fp4_main=config.use_fp4_sparse_kv,
        )

    def evaluate(self, *, exact: bool = False) -> Footprint:
        """What the caches must take; ``exact`` is four bytes a value and no scales."""
        width, index_width = self.width, self.index_width
        mxfp8 = width + width // 32  # a code of one byte a value, an e8m0 scale for 32
        fp4 = width // 2 + width // 16  # half a byte a value, an e4m3 scale for 16
        window, main = mxfp8, fp4 if self.has_fp4_main else mxfp8
        index = index_width // 2 + index_width // 32  # half a byte a value, an e8m0 scale for 32
        if exact:
            window, main, index = 4 * width, 4 * width, 4 * index_width
        per_token = sum((Fraction(main + index, ratio) for ratio in self.source_ratios), Fraction())
        pending = 2 * 4 * width * self.source_ratios.count(2)  # float32 latent and score of half a pair
        has_entries = bool(self.source_ratios)
        return Footprint(
            window_record=window,
            main_record=main if has_entries else 0,
            index_record=index if has_entries else 0,
            per_token=per_token,
            block=int(per_token * BLOCK_TOKENS),
            slot=self.num_layers * self.ring * window + pending,
        )


RELEASED = ByteFormulas(
    width=512, index_width=128, source_ratios=(2, 2, 2, 1), num_layers=40, ring=134
).evaluate()
"""The released model: records of 528, 288 and 68 bytes, 890 bytes a token."""


def as_lines(footprint: Footprint) -> Mapping[str, int | float]:
    """Names and values for a report; bytes per token need not be whole."""
    per_token = footprint.per_token
    return {
        "window_record": footprint.window_record,
        "main_record": footprint.main_record,
        "index_record": footprint.index_record,
        "per_token": int(per_token) if per_token.denominator == 1 else float(per_token),
        "block": footprint.block,
        "slot": footprint.slot,
    }
