"""The validation rules of model.md section 1.3: sizes, numbers and ids; the layer rules are another file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepinfer.engine.config_layer_rules import broken_layer_rules

if TYPE_CHECKING:
    from deepinfer.engine.model_config import ModelConfig

_POSITIVE = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads head_dim qk_rope_head_dim q_lora_rank "
    "o_lora_rank o_groups moe_intermediate_size max_position_embeddings n_routed_experts num_experts_per_tok "
    "sliding_window index_n_heads index_head_dim index_topk hc_mult hc_sinkhorn_iters"
).split()
_POSITIVE_CANDIDATE = ["candidate_topk_blocks", "candidate_block_size"]
_POSITIVE_ENGRAM = (
    "engram_vocab_size engram_max_ngram_size engram_n_heads engram_head_dim engram_compressed_vocab_size"
).split()
_POSITIVE_DSPARK = (
    "dspark_block_size dspark_markov_rank dspark_n_routed_experts dspark_num_experts_per_tok"
).split()

_GROUPED = "hidden_size q_lora_rank head_dim moe_intermediate_size o_lora_rank index_head_dim".split()


def broken_rules(config: ModelConfig) -> list[str]:
    """Return one sentence for each rule that ``config`` breaks, in the order of model.md; empty if valid.

    Relations between sizes are looked at only if every size is positive, as they divide by sizes.
    """
    problems = [*_sizes(config), *_numbers(config)]
    if problems:
        return problems
    return [*_widths(config), *broken_layer_rules(config), *_token_ids(config)]


def _sizes(config: ModelConfig) -> Iterator[str]:
    """Rule 1: sizes and counts are positive; the draft layers may be none."""
    names = list(_POSITIVE)
    names += _POSITIVE_CANDIDATE if config.candidate_source_layer_id is not None else []
    names += _POSITIVE_ENGRAM if config.engram_layer_ids else []
    names += _POSITIVE_DSPARK if config.num_nextn_predict_layers > 0 else []
    for name in names:
        if getattr(config, name) < 1:
            yield f"{name}={getattr(config, name)} must be positive"
    if config.num_nextn_predict_layers < 0:
        yield f"num_nextn_predict_layers={config.num_nextn_predict_layers} must not be negative"
    if any(rows < 1 for rows in config.engram_num_embeddings):
        yield f"engram_num_embeddings={list(config.engram_num_embeddings)} must be positive"


def _numbers(config: ModelConfig) -> Iterator[str]:
    """Real numbers lie where the formulas that use them are defined."""
    for name in ("rms_norm_eps", "hc_eps", "swiglu_limit"):
        if not 0 <= getattr(config, name) < math.inf:
            yield f"{name}={getattr(config, name)} must be finite and not negative"
    for name in ("rope_theta", "compress_rope_theta"):
        if not 1 < getattr(config, name) < math.inf:
            yield f"{name}={getattr(config, name)} must be finite and above 1"
    if not 0 < config.routed_scaling_factor < math.inf:
        yield f"routed_scaling_factor={config.routed_scaling_factor} must be finite and positive"
    yarn = config.rope_scaling
    if yarn is None:
        return
    for name in ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings"):
        if not 0 < getattr(yarn, name) < math.inf:
            yield f"rope_scaling.{name}={getattr(yarn, name)} must be finite and positive"
    if yarn.beta_fast < yarn.beta_slow:
        yield f"rope_scaling.beta_fast={yarn.beta_fast} is below rope_scaling.beta_slow={yarn.beta_slow}"


def _widths(config: ModelConfig) -> Iterator[str]:
    """Rules 2, 3, 4 and 11: heads into groups, rotary channels, experts, groups of the number formats."""
    heads, groups, rope = config.num_attention_heads, config.o_groups, config.qk_rope_head_dim
    if heads % groups:
        yield f"num_attention_heads={heads} is not a multiple of o_groups={groups}"
    if rope % 2:
        yield f"qk_rope_head_dim={rope} must be even"
    for name in ("head_dim", "index_head_dim"):
        if rope > getattr(config, name):
            yield f"qk_rope_head_dim={rope} exceeds {name}={getattr(config, name)}"
    pairs = [("num_experts_per_tok", "n_routed_experts")]
    if config.num_nextn_predict_layers:
        pairs.append(("dspark_num_experts_per_tok", "dspark_n_routed_experts"))
    for chosen, experts in pairs:
        if getattr(config, chosen) > getattr(config, experts):
            yield f"{chosen}={getattr(config, chosen)} exceeds {experts}={getattr(config, experts)}"
    for name in _GROUPED + (["engram_head_dim"] if config.engram_layer_ids else []):
        if getattr(config, name) % 32:
            yield f"{name}={getattr(config, name)} must be a multiple of 32, the group of the number formats"
    if heads % groups == 0 and heads // groups * config.head_dim % 32:
        yield (
            f"num_attention_heads={heads} * head_dim={config.head_dim} / o_groups={groups} "
            "must be a multiple of 32, the group of the number formats"
        )


def _token_ids(config: ModelConfig) -> Iterator[str]:
    """Special ids are rows of the embedding."""
    names = ["bos_token_id", "eos_token_id", "pad_token_id"]
    names += ["image_token_id"] if config.image_token_id is not None else []
    names += ["engram_pad_token_id"] if config.engram_layer_ids else []
    names += ["dspark_noise_token_id"] if config.num_nextn_predict_layers else []
    for name in names:
        if not 0 <= getattr(config, name) < config.vocab_size:
            yield f"{name}={getattr(config, name)} is outside vocab_size={config.vocab_size}"
