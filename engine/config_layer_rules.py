"""The rules of model.md section 1.3 about layers: ratios, sources, candidates, Engram, draft targets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from deepinfer.engine.engram_primes import engram_primes

if TYPE_CHECKING:
    from deepinfer.engine.model_config import ModelConfig


def broken_layer_rules(config: ModelConfig) -> Iterator[str]:
    """Yield one sentence for each broken rule, naming the keys at odds with their values.

    Every size must be positive already.
    """
    yield from _ratios(config)
    yield from _sources(config)
    yield from _candidates(config)
    yield from _engram(config)
    yield from _dspark(config)


def _ratios(config: ModelConfig) -> Iterator[str]:
    """Rule 5: one ratio for each backbone layer and each draft layer, of which the draft part is 0."""
    layers, drafts, ratios = config.num_hidden_layers, config.num_nextn_predict_layers, config.compress_ratios
    if len(ratios) != layers + drafts:
        yield (
            f"compress_ratios has {len(ratios)} entries, num_hidden_layers={layers} + "
            f"num_nextn_predict_layers={drafts} needs {layers + drafts}"
        )
    odd = sorted(set(ratios) - {0, 1, 2})
    if odd:
        yield f"compress_ratios holds {_list(odd)}; only 0, 1 and 2 exist"
    elif any(ratios[layers:]):
        yield (
            f"compress_ratios ends in {_list(ratios[layers:])} after num_hidden_layers={layers}; "
            "draft layers have ratio 0"
        )


def _sources(config: ModelConfig) -> Iterator[str]:
    """Rules 6 and 7: the id lists, the owner of every compressed layer, the decoder boundary."""
    layers, ratios = config.num_hidden_layers, config.compress_ratios
    names = ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids", "dspark_target_layer_ids")
    bad_lists = False
    for name in names:
        ids = getattr(config, name)
        if any(a >= b for a, b in pairwise(ids)):
            bad_lists = True
            yield f"{name}={_list(ids)} must be strictly increasing"
        if any(not 0 <= layer < layers for layer in ids):
            bad_lists = True
            yield f"{name}={_list(ids)} leaves the range of num_hidden_layers={layers}"
    if bad_lists or len(ratios) < layers:
        return
    kv, index = config.kv_source_layer_ids, config.index_source_layer_ids
    if not set(kv) <= set(index):
        yield f"kv_source_layer_ids={_list(kv)} is not a subset of index_source_layer_ids={_list(index)}"
    for name, ids in (("kv_source_layer_ids", kv), ("index_source_layer_ids", index)):
        for layer in ids:
            if ratios[layer] == 0:
                yield f"{name}={_list(ids)} holds layer {layer}, but compress_ratios[{layer}]=0"
    for layer in range(layers):
        if ratios[layer] == 0:
            continue
        owner = max((source for source in kv if source <= layer), default=None)
        if owner is None or ratios[owner] != ratios[layer]:
            held = "none" if owner is None else f"{owner} with ratio {ratios[owner]}"
            yield (
                f"compress_ratios[{layer}]={ratios[layer]} needs a source of the same ratio at or before it, "
                f"kv_source_layer_ids={_list(kv)} gives {held}"
            )
        if not any(source <= layer for source in index):
            yield (
                f"compress_ratios[{layer}]={ratios[layer]} needs a source at or before it, "
                f"index_source_layer_ids={_list(index)} gives none"
            )
    boundary = config.decoder_start
    if boundary < layers and boundary not in kv:
        yield (
            f"compress_ratios starts the decoder (first ratio 1) at layer {boundary}, "
            f"which is not in kv_source_layer_ids={_list(kv)}"
        )


def _candidates(config: ModelConfig) -> Iterator[str]:
    """Rule 8: the layer that chooses candidate blocks, and their capacity."""
    source = config.candidate_source_layer_id
    if source is None:
        return
    for name in ("index_source_layer_ids", "kv_source_layer_ids"):
        if source not in getattr(config, name):
            yield f"candidate_source_layer_id={source} is not in {name}={_list(getattr(config, name))}"
    blocks, size = config.candidate_topk_blocks, config.candidate_block_size
    if blocks > 4096:
        yield f"candidate_topk_blocks={blocks} exceeds 4096"
    if size not in (8, 16):
        yield f"candidate_block_size={size} must be 8 or 16"
    if blocks * size < config.index_topk:
        yield (
            f"candidate_topk_blocks={blocks} * candidate_block_size={size} "
            f"is below index_topk={config.index_topk}"
        )
    ratios = config.compress_ratios
    if not 0 <= source < len(ratios):
        return
    for layer in config.index_source_layer_ids:
        if source < layer < len(ratios) and ratios[layer] != ratios[source]:
            yield (
                f"candidate_source_layer_id={source} has compress_ratios[{source}]={ratios[source]}, "
                f"but the later index layer has compress_ratios[{layer}]={ratios[layer]}"
            )


def _engram(config: ModelConfig) -> Iterator[str]:
    """Rule 9: n-grams, table rows, encoder layers, the compressed vocabulary."""
    layers, rows = config.engram_layer_ids, config.engram_num_embeddings
    if len(rows) != len(layers):
        yield f"engram_num_embeddings={_list(rows)} and engram_layer_ids={_list(layers)} differ in length"
    if not layers:
        return
    if config.engram_max_ngram_size < 2:
        yield f"engram_max_ngram_size={config.engram_max_ngram_size} must be at least 2"
    if config.engram_compressed_vocab_size > config.vocab_size:
        yield (
            f"engram_compressed_vocab_size={config.engram_compressed_vocab_size} "
            f"exceeds vocab_size={config.vocab_size}"
        )
    for layer in layers:
        if layer >= config.decoder_start:
            yield (
                f"engram_layer_ids={_list(layers)} holds decoder layer {layer}: "
                f"compress_ratios starts the decoder at layer {config.decoder_start}"
            )
    if len(rows) != len(layers) or config.engram_max_ngram_size < 2:
        return
    yield from _engram_rows(config)


def _engram_rows(config: ModelConfig) -> Iterator[str]:
    """The part of rule 9 that needs the primes; the lower bound keeps absurd values from a long search."""
    start = config.engram_vocab_size
    bounds = [config.engram_rows_per_token * start] * len(config.engram_layer_ids)
    if all(rows >= bound for rows, bound in zip(config.engram_num_embeddings, bounds, strict=True)):
        primes = engram_primes(
            num_layers=len(config.engram_layer_ids),
            vocab_size=start,
            max_ngram_size=config.engram_max_ngram_size,
            num_heads=config.engram_n_heads,
        )
        bounds = [sum(layer) for layer in primes]
    for slot, (rows, bound) in enumerate(zip(config.engram_num_embeddings, bounds, strict=True)):
        if rows < bound:
            yield (
                f"engram_num_embeddings[{slot}]={rows} is below {bound}, the rows that "
                f"engram_vocab_size={start}, engram_max_ngram_size={config.engram_max_ngram_size} and "
                f"engram_n_heads={config.engram_n_heads} address"
            )


def _dspark(config: ModelConfig) -> Iterator[str]:
    """Rule 10: the draft taps decoder layers only (of a model that has a decoder half)."""
    targets, boundary = config.dspark_target_layer_ids, config.decoder_start
    if config.num_nextn_predict_layers and not targets:
        drafts = config.num_nextn_predict_layers
        yield f"dspark_target_layer_ids is empty, but num_nextn_predict_layers={drafts}"
    if boundary < config.num_hidden_layers and any(target < boundary for target in targets):
        yield (
            f"dspark_target_layer_ids={_list(targets)} reaches before layer {boundary}, "
            "where compress_ratios starts the decoder"
        )


def _list(values: tuple[int, ...] | list[int]) -> str:
    shown = ", ".join(str(value) for value in values[:12])
    return f"[{shown}, ... {len(values)} entries]" if len(values) > 12 else f"[{shown}]"
