"""Every tensor a checkpoint must hold, derived from the configuration alone (model.md section 9).

Nothing here reads a file or allocates a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from deepinfer.engine.model_config import ModelConfig

BLOCK = 32
"""Columns, or rows and columns, that share one stored scale."""
DTYPE_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1}
"""Bytes of one element for each safetensors dtype a checkpoint may use."""
_BF16 = ("BF16", "F32")
_F32 = ("F32",)
_F8 = ("F8_E4M3",)
_SCALE = ("F8_E8M0", "U8")
_FP4 = ("I8", "U8")


class Component(StrEnum):
    """Parts of the model as model.md section 12 counts them; the value is the printed name."""

    EMBEDDING = "token embedding"
    HEAD = "LM head"
    FINAL_NORM = "final norm"
    ATTENTION = "attention"
    NORMS = "attention and FFN norms"
    HYPER = "hyper-connections"
    ROUTER = "routers"
    SHARED = "shared experts"
    EXPERTS = "routed experts"
    COMPRESSOR = "compressors"
    INDEXER = "indexers"
    ENGRAM_TABLE = "Engram tables"
    ENGRAM = "Engram projections and gates"
    DRAFT_ATTENTION = "draft attention"
    DRAFT_NORMS = "draft norms"
    DRAFT_HYPER = "draft hyper-connections"
    DRAFT_ROUTER = "draft routers"
    DRAFT_SHARED = "draft shared experts"
    DRAFT_EXPERTS = "draft routed experts"
    DRAFT_HEADS = "draft projection and heads"
    VISION = "vision tower, aligner, delimiters"
    SCALES = "scales"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One expected tensor.

    Attributes:
        name: released name, without a ``model.`` prefix.
        dtypes: accepted safetensors dtypes; the first is the released one.
        shape: stored shape (FP4 weights hold two columns per byte).
        component: the part that the tensor counts towards.
        values_per_element: parameters behind one stored element: 2 for packed FP4, 0 for scales, else 1.
    """

    name: str
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    component: Component
    values_per_element: int = 1

    @property
    def is_scale(self) -> bool:
        """Whether the tensor holds scales, which are storage and no parameters."""
        return self.component is Component.SCALES

    @property
    def num_parameters(self) -> int:
        """Parameters of the tensor, 0 for scales."""
        return math.prod(self.shape) * self.values_per_element

    @property
    def stored_bytes(self) -> int:
        """Payload bytes in the released dtype."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtypes[0]]


def expected_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Yield every tensor of the text model, backbone first, a scale right after its weight."""
    c = config
    yield from _plain("embed.weight", (c.vocab_size, c.hidden_size), Component.EMBEDDING)
    for layer in range(c.num_hidden_layers):
        prefix = f"layers.{layer}."
        yield from _layer(c, prefix, c.n_routed_experts, is_draft=False)
        yield from _sparse_attention(c, prefix, layer)
        yield from _engram(c, prefix, layer)
    yield from _plain("norm.weight", (c.hidden_size,), Component.FINAL_NORM)
    yield from _plain("head.weight", (c.vocab_size, c.hidden_size), Component.HEAD)
    for stage in range(c.num_nextn_predict_layers):
        yield from _layer(c, f"mtp.{stage}.", c.dspark_n_routed_experts, is_draft=True)
    if c.num_nextn_predict_layers:
        yield from _draft_heads(c)


def vision_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Yield the tensors of the vision part, which loading skips; none for a text-only model."""
    vision = config.vision
    if vision is None:
        return
    width, inner = vision.hidden_size, vision.intermediate_size
    for name in ("image_start", "image_end", "image_newline"):
        yield from _plain(name, (config.hidden_size,), Component.VISION)
    shapes: dict[str, tuple[int, ...]] = {
        "vision.patch_embed.proj.weight": (width, 3 * vision.patch_size**2),
        "vision.patch_embed.proj.bias": (width,),
    }
    for block in range(vision.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        shapes |= {
            prefix + "norm1.weight": (width,),
            prefix + "norm2.weight": (width,),
            prefix + "attn.wqkv.weight": (3 * width, width),
            prefix + "attn.wqkv.bias": (3 * width,),
            prefix + "attn.wo.weight": (width, width),
            prefix + "attn.wo.bias": (width,),
            prefix + "mlp.w1.weight": (2 * inner, width),
            prefix + "mlp.w2.weight": (width, inner),
        }
    shapes |= {
        "vision.norm.weight": (width,),
        "aligner.w1.weight": (config.hidden_size, width * vision.downsample_ratio**2),
        "aligner.w1.bias": (config.hidden_size,),
        "aligner.w2.weight": (config.hidden_size, config.hidden_size),
        "aligner.w2.bias": (config.hidden_size,),
    }
    for name, shape in shapes.items():
        yield from _plain(name, shape, Component.VISION)


def _layer(c: ModelConfig, prefix: str, num_experts: int, *, is_draft: bool) -> Iterator[TensorSpec]:
    """The block that every backbone and draft layer owns (model.md section 9.3)."""
    width, rank, inner = c.hidden_size, c.q_lora_rank, c.moe_intermediate_size
    heads_width, latent = c.num_attention_heads * c.head_dim, c.head_dim
    attention = Component.DRAFT_ATTENTION if is_draft else Component.ATTENTION
    norms = Component.DRAFT_NORMS if is_draft else Component.NORMS
    hyper = Component.DRAFT_HYPER if is_draft else Component.HYPER
    router = Component.DRAFT_ROUTER if is_draft else Component.ROUTER
    shared = Component.DRAFT_SHARED if is_draft else Component.SHARED
    experts = Component.DRAFT_EXPERTS if is_draft else Component.EXPERTS

    yield from _plain(f"{prefix}attn_norm.weight", (width,), norms)
    yield from _plain(f"{prefix}ffn_norm.weight", (width,), norms)
    yield from _fp8(c, f"{prefix}attn.wq_a", rank, width, attention)
    yield from _plain(f"{prefix}attn.q_norm.weight", (rank,), attention)
    yield from _fp8(c, f"{prefix}attn.wq_b", heads_width, rank, attention)
    yield from _fp8(c, f"{prefix}attn.wkv", latent, width, attention)
    yield from _plain(f"{prefix}attn.kv_norm.weight", (latent,), attention)
    yield from _fp8(c, f"{prefix}attn.wo_a", c.o_groups * c.o_lora_rank, heads_width // c.o_groups, attention)
    yield from _fp8(c, f"{prefix}attn.wo_b", width, c.o_groups * c.o_lora_rank, attention)
    yield TensorSpec(f"{prefix}attn.attn_sink", _F32, (c.num_attention_heads,), attention)
    for site in ("attn", "ffn"):
        yield TensorSpec(f"{prefix}hc_{site}_fn", _F32, (c.hc_mix_width, c.hc_mult * width), hyper)
        yield TensorSpec(f"{prefix}hc_{site}_base", _F32, (c.hc_mix_width,), hyper)
        yield TensorSpec(f"{prefix}hc_{site}_scale", _F32, (3,), hyper)
    yield from _plain(f"{prefix}ffn.gate.weight", (num_experts, width), router)
    yield TensorSpec(f"{prefix}ffn.gate.bias", _F32, (num_experts,), router)
    yield TensorSpec(f"{prefix}ffn.gate.bias_vl", _F32, (num_experts,), router)
    for name, rows, columns in (("w1", inner, width), ("w2", width, inner), ("w3", inner, width)):
        yield from _fp8(c, f"{prefix}ffn.shared_experts.{name}", rows, columns, shared)
    for expert in range(num_experts):
        for name, rows, columns in (("w1", inner, width), ("w2", width, inner), ("w3", inner, width)):
            yield from _fp4(c, f"{prefix}ffn.experts.{expert}.{name}", rows, columns, experts)


def _sparse_attention(c: ModelConfig, prefix: str, layer: int) -> Iterator[TensorSpec]:
    if c.is_kv_source(layer):
        for name in ("wkv", "wgate") if c.compress_ratio(layer) == 2 else ("wkv",):
            weight = f"{prefix}attn.compressor.{name}.weight"
            yield from _plain(weight, (c.head_dim, c.hidden_size), Component.COMPRESSOR)
        yield from _plain(f"{prefix}attn.compressor.norm.weight", (c.head_dim,), Component.COMPRESSOR)
        yield from _plain(
            f"{prefix}attn.indexer.wk.weight", (c.index_head_dim, c.head_dim), Component.INDEXER
        )
        yield from _plain(f"{prefix}attn.indexer.k_norm.weight", (c.index_head_dim,), Component.INDEXER)
    if c.is_index_source(layer):
        queries = c.index_n_heads * c.index_head_dim
        yield from _fp8(c, f"{prefix}attn.indexer.wq_b", queries, c.q_lora_rank, Component.INDEXER)
        weight = f"{prefix}attn.indexer.weights_proj.weight"
        yield from _plain(weight, (c.index_n_heads, c.hidden_size), Component.INDEXER)


def _engram(c: ModelConfig, prefix: str, layer: int) -> Iterator[TensorSpec]:
    slot = c.engram_slot(layer)
    if slot is None:
        return
    rows, width = c.engram_num_embeddings[slot], c.engram_head_dim
    table = f"{prefix}engram.embed"
    if c.is_quantized:
        yield TensorSpec(f"{table}.weight", _F8, (rows, width), Component.ENGRAM_TABLE)
        yield TensorSpec(f"{table}.scale", _SCALE, (rows, width // BLOCK), Component.SCALES, 0)
    else:
        yield from _plain(f"{table}.weight", (rows, width), Component.ENGRAM_TABLE)
    out = (c.hc_mult + 1) * c.hidden_size
    yield from _fp8(c, f"{prefix}engram.wkv", out, c.engram_rows_per_token * width, Component.ENGRAM)
    for name in ("q_weight", "k_weight"):
        yield from _plain(f"{prefix}engram.{name}", (c.hc_mult, c.hidden_size), Component.ENGRAM)


def _draft_heads(c: ModelConfig) -> Iterator[TensorSpec]:
    """What only the first and the last draft layer own (model.md section 9.4)."""
    first, last = "mtp.0.", f"mtp.{c.num_nextn_predict_layers - 1}."
    features = len(c.dspark_target_layer_ids) * c.hidden_size
    rank, heads = c.dspark_markov_rank, Component.DRAFT_HEADS
    yield from _fp8(c, f"{first}main_proj", c.hidden_size, features, heads)
    yield from _plain(f"{first}main_norm.weight", (c.hidden_size,), heads)
    yield from _plain(f"{last}norm.weight", (c.hidden_size,), Component.DRAFT_NORMS)
    yield from _plain(f"{last}markov_head.embed.weight", (c.vocab_size, rank), heads)
    yield from _plain(f"{last}markov_head.head.weight", (c.vocab_size, rank), heads)
    yield from _plain(f"{last}confidence_head.proj.weight", (1, c.hidden_size + rank), heads)


def _plain(name: str, shape: tuple[int, ...], component: Component) -> Iterator[TensorSpec]:
    yield TensorSpec(name, _BF16, shape, component)


def _fp8(c: ModelConfig, name: str, rows: int, columns: int, component: Component) -> Iterator[TensorSpec]:
    if not c.is_quantized:
        yield from _plain(f"{name}.weight", (rows, columns), component)
        return
    yield TensorSpec(f"{name}.weight", _F8, (rows, columns), component)
    yield TensorSpec(f"{name}.scale", _SCALE, (_blocks(rows), _blocks(columns)), Component.SCALES, 0)


def _fp4(c: ModelConfig, name: str, rows: int, columns: int, component: Component) -> Iterator[TensorSpec]:
    if not c.is_quantized:
        yield from _plain(f"{name}.weight", (rows, columns), component)
        return
    yield TensorSpec(f"{name}.weight", _FP4, (rows, columns // 2), component, 2)
    yield TensorSpec(f"{name}.scale", _SCALE, (rows, columns // BLOCK), Component.SCALES, 0)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)
