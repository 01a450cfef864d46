"""What the model is: the fields of config.json that shape the text model, and what follows from them.

A ``ModelConfig`` that exists is valid: construction checks every rule of model.md section 1.3.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from deepinfer.engine.config_rules import broken_rules
from deepinfer.engine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class YarnConfig:
    """``rope_scaling`` of the layers with a compress ratio (model.md section 3.4); frequencies only.

    Attributes:
        factor: divisor of the low frequencies.
        beta_fast: rotations within the original length above which a frequency is kept.
        beta_slow: rotations below which a frequency is divided by ``factor``.
        original_max_position_embeddings: the original length, in tokens.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Sizes of the vision tower, counted but never loaded; defaults are the released values."""

    num_hidden_layers: int = 32
    hidden_size: int = 1024
    intermediate_size: int = 2816
    patch_size: int = 14
    downsample_ratio: int = 3


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A validated model configuration; names and meaning of the fields as in model.md section 1.2.

    Fields that config.json keeps elsewhere or spells differently:

    Attributes:
        bos_token_id, eos_token_id, pad_token_id, image_token_id: from the top level.
        is_quantized: whether a ``quantization_config`` is present, so that weights come with scales.
        vision: the vision tower, ``None`` for a text-only model.
        rope_scaling: ``None`` leaves the frequencies of compressed layers unscaled.
        candidate_source_layer_id: ``None`` (stored as -1 or null) disables the candidate restriction.
        swiglu_limit: 0 means no clamp.
        use_fp4_sparse_kv: false stores the main compressed KV as MXFP8 instead of FP4 with e4m3 scales.
        engram_*, dspark_*, candidate_*: zero or empty where the part does not exist.

    Raises:
        ConfigError: any rule is broken; one line with all broken rules, each naming its keys and values.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    moe_intermediate_size: int
    swiglu_limit: float = 0.0
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: YarnConfig | None = None
    n_routed_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int | None = None
    candidate_topk_blocks: int = 0
    candidate_block_size: int = 0
    use_fp4_sparse_kv: bool = True
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...] = ()
    engram_vocab_size: int = 0
    engram_max_ngram_size: int = 0
    engram_n_heads: int = 0
    engram_head_dim: int = 0
    engram_pad_token_id: int = 0
    engram_compressed_vocab_size: int = 0
    num_nextn_predict_layers: int
    dspark_block_size: int = 0
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 0
    dspark_n_routed_experts: int = 0
    dspark_num_experts_per_tok: int = 0
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int | None = None
    is_quantized: bool
    vision: VisionConfig | None = None

    def __post_init__(self) -> None:
        """Check every rule of model.md section 1.3."""
        problems = broken_rules(self)
        if problems:
            raise ConfigError("; ".join(problems))

    def compress_ratio(self, layer: int) -> int:
        """Ratio of backbone layer ``layer``: 0 (window only), 1 or 2."""
        return self.compress_ratios[self._backbone(layer)]

    def kv_source(self, layer: int) -> int | None:
        """Layer whose compressed KV and index keys ``layer`` reads; ``None`` for a window-only layer."""
        return self._source(layer, self.kv_source_layer_ids)

    def index_source(self, layer: int) -> int | None:
        """Layer whose top-k selection ``layer`` uses; ``None`` for a window-only layer."""
        return self._source(layer, self.index_source_layer_ids)

    def is_kv_source(self, layer: int) -> bool:
        """Whether ``layer`` owns a compressor and index keys."""
        return layer in self.kv_source_layer_ids

    def is_index_source(self, layer: int) -> bool:
        """Whether ``layer`` computes its own top-k selection."""
        return layer in self.index_source_layer_ids

    def engram_slot(self, layer: int) -> int | None:
        """Position of ``layer`` in ``engram_layer_ids``, ``None`` if it has no Engram."""
        return self.engram_layer_ids.index(layer) if layer in self.engram_layer_ids else None

    @cached_property
    def decoder_start(self) -> int:
        """First layer with ratio 1, where the decoder half begins; ``num_hidden_layers`` if there is none."""
        backbone = self.compress_ratios[: self.num_hidden_layers]
        return backbone.index(1) if 1 in backbone else self.num_hidden_layers

    @property
    def supports_truncated_prefill(self) -> bool:
        """Whether every decoder layer can do without the rows that ``mask`` and ``compact`` drop.

        False if a layer after ``decoder_start`` owns a compressor: its entries of the dropped rows would need
        the decoder streams of those rows. No rule of model.md section 1.3 forbids such a model.
        """
        return all(source <= self.decoder_start for source in self.kv_source_layer_ids)

    @property
    def min_keep(self) -> int:
        """Fewest rows truncated prefill may keep: a window plus one draft block and its golden token."""
        return self.sliding_window + self.dspark_block_size + 1

    @property
    def default_keep(self) -> int:
        """Rows truncated prefill keeps unless told otherwise: window + 8, and 140 at the released window."""
        wanted = 140 if self.sliding_window == 128 else self.sliding_window + 8
        return max(wanted, self.min_keep)

    @property
    def engram_rows_per_token(self) -> int:
        """Table rows that one position looks up in each Engram layer."""
        return max(self.engram_max_ngram_size - 1, 0) * self.engram_n_heads

    @property
    def hc_mix_width(self) -> int:
        """Outputs of one hyper-connection mix: pre, post and the comb matrix, ``(hc_mult + 2) * hc_mult``."""
        return (self.hc_mult + 2) * self.hc_mult

    def _backbone(self, layer: int) -> int:
        if not 0 <= layer < self.num_hidden_layers:
            raise IndexError(f"layer {layer} is outside the backbone of {self.num_hidden_layers} layers")
        return layer

    def _source(self, layer: int, sources: tuple[int, ...]) -> int | None:
        if self.compress_ratio(layer) == 0:
            return None
        return sources[bisect_right(sources, layer) - 1]
