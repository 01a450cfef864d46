"""What each layer does, in the terms of model.md section 2.1."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.engine.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class LayerRole:
    """One line of the layer table.

    Attributes:
        name: ``layers.<l>`` or ``mtp.<s>``.
        half: ``encoder``, ``decoder`` or ``draft``.
        role: ``window``, ``full`` (own compressor and selection), ``reindex`` (own selection) or ``reuse``.
        ratio: compress ratio.
        kv_from: layer whose compressed KV and index keys it reads, or ``None``.
        selection_from: layer whose top-k it uses, or ``None``.
        extras: further duties, such as ``Engram`` or ``draft target``.
    """

    name: str
    half: str
    role: str
    ratio: int
    kv_from: int | None
    selection_from: int | None
    extras: tuple[str, ...]


def layer_roles(config: ModelConfig) -> tuple[LayerRole, ...]:
    """Return the role of every backbone layer, then of every draft layer."""
    backbone = [_backbone_role(config, layer) for layer in range(config.num_hidden_layers)]
    drafts = [
        LayerRole(
            name=f"mtp.{stage}",
            half="draft",
            role="window",
            ratio=0,
            kv_from=None,
            selection_from=None,
            extras=_draft_extras(config, stage),
        )
        for stage in range(config.num_nextn_predict_layers)
    ]
    return (*backbone, *drafts)


def _backbone_role(config: ModelConfig, layer: int) -> LayerRole:
    if config.compress_ratio(layer) == 0:
        role = "window"
    elif config.is_kv_source(layer):
        role = "full"
    else:
        role = "reindex" if config.is_index_source(layer) else "reuse"
    extras = {
        "Engram": config.engram_slot(layer) is not None,
        "candidate source": layer == config.candidate_source_layer_id,
        "decoder starts": layer == config.decoder_start,
        "draft target": layer in config.dspark_target_layer_ids,
    }
    return LayerRole(
        name=f"layers.{layer}",
        half="decoder" if layer >= config.decoder_start else "encoder",
        role=role,
        ratio=config.compress_ratio(layer),
        kv_from=config.kv_source(layer),
        selection_from=config.index_source(layer),
        extras=tuple(name for name, applies in extras.items() if applies),
    )


def _draft_extras(config: ModelConfig, stage: int) -> tuple[str, ...]:
    extras: tuple[str, ...] = ("target projection",) if stage == 0 else ()
    if stage == config.num_nextn_predict_layers - 1:
        extras += ("Markov and confidence heads",)
    return extras
