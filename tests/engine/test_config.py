"""Reading config.json: released files load, and each rule of model.md section 1.3 is enforced."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from deepinfer.engine.config import load_model_config, parse_model_config
from deepinfer.engine.errors import ConfigError

Document = dict[str, Any]


def test_released_configuration_loads_with_its_layer_facts(released_config: Path) -> None:
    config = load_model_config(released_config)
    assert config.decoder_start == 20
    assert (config.default_keep, config.min_keep) == (140, 134)
    assert [config.kv_source(layer) for layer in (0, 1, 2, 7, 8, 19, 20, 39)] == [
        *(None, None, 2, 2, 8, 14, 20, 20)
    ]
    assert [config.index_source(layer) for layer in (1, 3, 20, 23, 24, 27, 39)] == [
        *(None, 2, 20, 20, 24, 24, 36)
    ]
    assert [config.engram_slot(layer) for layer in (0, 1, 14)] == [None, 0, 1]
    assert config.engram_rows_per_token == 24
    assert config.hc_mix_width == 24
    assert config.is_quantized
    assert config.supports_truncated_prefill
    assert config.vision is not None


def test_bundled_configuration_loads(mini_dir: Path) -> None:
    config = load_model_config(mini_dir)
    assert (config.decoder_start, config.default_keep, config.min_keep) == (5, 72, 70)
    assert config.vision is None
    assert config.candidate_source_layer_id == 5


def test_golden_configurations_load_quantised_and_not(quantised_dir: Path, unquantised_dir: Path) -> None:
    quantised, unquantised = load_model_config(quantised_dir), load_model_config(unquantised_dir)
    assert quantised == dataclasses.replace(unquantised, is_quantized=True)
    assert not unquantised.is_quantized


def test_minus_one_and_null_both_disable_candidates(released_document: Document) -> None:
    for value in (-1, None):
        released_document["text_config"]["candidate_source_layer_id"] = value
        assert parse_model_config(released_document).candidate_source_layer_id is None


def test_missing_clamp_means_no_clamp(released_document: Document) -> None:
    del released_document["text_config"]["swiglu_limit"]
    assert parse_model_config(released_document).swiglu_limit == 0.0


def test_limits_of_production_kernels_are_no_rules(released_document: Document) -> None:
    released_document["text_config"] |= {"candidate_topk_blocks": 67, "index_n_heads": 48, "head_dim": 576}
    assert parse_model_config(released_document).candidate_topk_blocks == 67


def test_model_without_draft_engram_and_decoder_loads(released_document: Document) -> None:
    text = released_document["text_config"]
    for key in [key for key in text if key.startswith(("engram_", "dspark_", "candidate_"))]:
        del text[key]
    text |= {
        "num_nextn_predict_layers": 0,
        "engram_layer_ids": [],
        "compress_ratios": [0, 0] + [2] * 38,
        "kv_source_layer_ids": [2],
        "index_source_layer_ids": [2, 9],
    }
    config = parse_model_config(released_document)
    assert config.decoder_start == 40
    assert config.min_keep == 129


def test_later_kv_source_rules_out_truncated_prefill(released_document: Document) -> None:
    released_document["text_config"]["kv_source_layer_ids"] = [2, 8, 14, 20, 28]
    assert not parse_model_config(released_document).supports_truncated_prefill


def test_layer_outside_the_backbone_is_refused(released_config: Path) -> None:
    config = load_model_config(released_config)
    with pytest.raises(IndexError, match="layer 40 is outside"):
        config.kv_source(40)


RULES: list[tuple[str, Document, list[str]]] = [
    ("1 positive size", {"hidden_size": 0}, ["hidden_size=0"]),
    ("1 negative count", {"num_nextn_predict_layers": -1}, ["num_nextn_predict_layers=-1"]),
    ("1 one latent", {"num_key_value_heads": 2}, ["num_key_value_heads=2"]),
    ("2 groups", {"o_groups": 7}, ["num_attention_heads=64", "o_groups=7"]),
    ("3 even", {"qk_rope_head_dim": 63}, ["qk_rope_head_dim=63"]),
    ("3 head", {"qk_rope_head_dim": 160}, ["qk_rope_head_dim=160", "index_head_dim=128"]),
    ("4 experts", {"num_experts_per_tok": 385}, ["num_experts_per_tok=385", "n_routed_experts=384"]),
    (
        "4 draft experts",
        {"dspark_num_experts_per_tok": 129},
        ["dspark_num_experts_per_tok=129", "dspark_n_routed_experts=128"],
    ),
    ("4 one shared", {"n_shared_experts": 2}, ["n_shared_experts=2"]),
    (
        "5 length",
        {"compress_ratios": [0, 0] + [2] * 18 + [1] * 20},
        ["compress_ratios has 40", "num_hidden_layers=40", "num_nextn_predict_layers=3"],
    ),
    (
        "5 value",
        {"compress_ratios": [0, 0] + [2] * 18 + [1] * 19 + [4] + [0] * 3},
        ["compress_ratios holds [4]"],
    ),
    (
        "5 draft tail",
        {"compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 1]},
        ["compress_ratios ends in [0, 0, 1]", "num_hidden_layers=40"],
    ),
    (
        "6 increasing",
        {"kv_source_layer_ids": [2, 14, 8, 20]},
        ["kv_source_layer_ids=[2, 14, 8, 20] must be strictly increasing"],
    ),
    (
        "6 range",
        {"index_source_layer_ids": [2, 8, 14, 20, 40]},
        ["index_source_layer_ids=[2, 8, 14, 20, 40]", "num_hidden_layers=40"],
    ),
    (
        "6 subset",
        {"index_source_layer_ids": [2, 8, 20]},
        ["kv_source_layer_ids=[2, 8, 14, 20]", "index_source_layer_ids=[2, 8, 20]"],
    ),
    (
        "6 window layer",
        {"kv_source_layer_ids": [1, 2, 20], "index_source_layer_ids": [1, 2, 20]},
        ["kv_source_layer_ids=[1, 2, 20] holds layer 1", "compress_ratios[1]=0"],
    ),
    (
        "6 no source",
        {"kv_source_layer_ids": [8, 14, 20], "index_source_layer_ids": [8, 14, 20]},
        ["compress_ratios[2]=2", "kv_source_layer_ids=[8, 14, 20]", "index_source_layer_ids=[8, 14, 20]"],
    ),
    (
        "6 same ratio",
        {"compress_ratios": [0, 0] + [2] * 18 + [1] * 15 + [2] * 5 + [0] * 3},
        ["compress_ratios[35]=2 needs", "kv_source_layer_ids=[2, 8, 14, 20] gives 20 with ratio 1"],
    ),
    (
        "7 boundary",
        {"kv_source_layer_ids": [2, 8, 14], "candidate_source_layer_id": None},
        ["compress_ratios starts the decoder", "layer 20", "kv_source_layer_ids=[2, 8, 14]"],
    ),
    (
        "8 layer",
        {"candidate_source_layer_id": 24},
        ["candidate_source_layer_id=24", "kv_source_layer_ids=[2, 8, 14, 20]"],
    ),
    ("8 blocks", {"candidate_topk_blocks": 4097}, ["candidate_topk_blocks=4097"]),
    ("8 block size", {"candidate_block_size": 12}, ["candidate_block_size=12"]),
    (
        "8 capacity",
        {"candidate_topk_blocks": 32},
        ["candidate_topk_blocks=32", "candidate_block_size=8", "index_topk=512"],
    ),
    (
        "8 ratio",
        {"candidate_source_layer_id": 14},
        ["candidate_source_layer_id=14", "compress_ratios[14]=2", "compress_ratios[20]=1"],
    ),
    ("9 n-gram", {"engram_max_ngram_size": 1}, ["engram_max_ngram_size=1"]),
    (
        "9 length",
        {"engram_num_embeddings": [384006168]},
        ["engram_num_embeddings=[384006168]", "engram_layer_ids=[1, 14]"],
    ),
    (
        "9 rows",
        {"engram_num_embeddings": [384006168, 384016681]},
        ["engram_num_embeddings[1]=384016681", "engram_vocab_size=16000000"],
    ),
    ("9 pad", {"engram_pad_token_id": 129280}, ["engram_pad_token_id=129280", "vocab_size=129280"]),
    ("9 encoder", {"engram_layer_ids": [1, 20]}, ["engram_layer_ids=[1, 20]", "compress_ratios"]),
    (
        "9 compressed",
        {"engram_compressed_vocab_size": 129281},
        ["engram_compressed_vocab_size=129281", "vocab_size=129280"],
    ),
    (
        "10 increasing",
        {"dspark_target_layer_ids": [38, 37, 39]},
        ["dspark_target_layer_ids=[38, 37, 39] must be strictly increasing"],
    ),
    (
        "10 side",
        {"dspark_target_layer_ids": [19, 38, 39]},
        ["dspark_target_layer_ids=[19, 38, 39]", "compress_ratios"],
    ),
    ("11 multiple of 32", {"q_lora_rank": 1288}, ["q_lora_rank=1288"]),
    ("11 index head", {"index_head_dim": 80}, ["index_head_dim=80"]),
    ("11 Engram row", {"engram_head_dim": 48}, ["engram_head_dim=48"]),
    ("noise id", {"dspark_noise_token_id": 200000}, ["dspark_noise_token_id=200000", "vocab_size=129280"]),
    ("base", {"rope_theta": 1}, ["rope_theta=1.0"]),
]


@pytest.mark.parametrize(("change", "parts"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_broken_rule_names_its_keys_with_their_values(
    released_document: Document, change: Document, parts: list[str]
) -> None:
    released_document["text_config"] |= change
    with pytest.raises(ConfigError) as caught:
        parse_model_config(released_document)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


UNSUPPORTED: list[tuple[str, object]] = [
    ("hidden_act", "gelu"),
    ("scoring_func", "sigmoid"),
    ("topk_method", "greedy"),
    ("attention_bias", True),
    ("num_key_value_heads", True),
    ("attention_dropout", 0.1),
    ("tie_word_embeddings", True),
    ("hc_shifted", False),
    ("dspark_target_attn_input", False),
    ("model_type", "deepseek_v3"),
    ("index_k_source_layer_ids", [2, 8, 14, 24]),
]


@pytest.mark.parametrize(("key", "value"), UNSUPPORTED, ids=[key for key, _ in UNSUPPORTED])
def test_value_that_is_not_implemented_is_refused(
    released_document: Document, key: str, value: object
) -> None:
    released_document["text_config"][key] = value
    with pytest.raises(ConfigError, match=f"text_config.{key}=.* not supported"):
        parse_model_config(released_document)


def test_other_quantisation_is_refused(released_document: Document) -> None:
    released_document["quantization_config"]["weight_block_size"] = [128, 128]
    with pytest.raises(ConfigError, match=r"quantization_config\.weight_block_size=\[128, 128\]"):
        parse_model_config(released_document)


def test_ids_that_differ_between_levels_are_a_contradiction(released_document: Document) -> None:
    released_document["text_config"]["eos_token_id"] = 5
    with pytest.raises(ConfigError, match=r"eos_token_id=1 contradicts text_config\.eos_token_id=5"):
        parse_model_config(released_document)


def test_all_problems_are_listed_at_once(released_document: Document) -> None:
    text = released_document["text_config"]
    del text["hidden_size"]
    text |= {"head_dim": "512", "sliding_windw": 128, "hidden_act": "gelu", "norm_topk_prob": 1}
    with pytest.raises(ConfigError) as caught:
        parse_model_config(released_document)
    message = str(caught.value)
    assert "missing key text_config.hidden_size" in message
    assert 'text_config.head_dim must be an integer, is "512"' in message
    assert "unknown key text_config.sliding_windw" in message
    assert "text_config.norm_topk_prob must be true or false, is 1" in message
    assert 'text_config.hidden_act="gelu" is not supported' in message
