"""Reading config.json: which keys exist, where they live, and which values this engine implements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer.engine.config_json import json_type, read_fields, read_json_object, show
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.model_config import ModelConfig, VisionConfig, YarnConfig

__all__ = ["ModelConfig", "VisionConfig", "YarnConfig", "load_model_config", "parse_model_config"]

_TOP_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_FIXED_TOP: dict[str, object] = {"model_type": "deepseek_v41", "tie_word_embeddings": False}
_FIXED_TEXT: dict[str, object] = {
    "model_type": "deepseek_v41_text",
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "hc_shifted": True,
    "dspark_target_attn_input": True,
}
_FIXED_QUANTIZATION: dict[str, object] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
_BOOKKEEPING = frozenset({"dtype", "torch_dtype", "transformers_version", "_name_or_path", "architectures"})
"""Written by tools for themselves; nothing here depends on them."""
_IGNORED_TOP = _BOOKKEEPING | {"auto_map", "use_cache", "initializer_range"}
_IGNORED_TEXT = _BOOKKEEPING | {"use_cache", "initializer_range", "tokenizer_compatibility"}
_OUTSIDE_FIELDS = (*_TOP_IDS, "rope_scaling")
_OUTSIDE_TEXT = frozenset({*_TOP_IDS, "image_token_id", "is_quantized", "vision", "rope_scaling"})


def load_model_config(path: Path) -> ModelConfig:
    """Read and validate a model configuration.

    Args:
        path: a config.json, or a folder that holds one.

    Raises:
        ConfigError: the file is unreadable, lacks a key, has an unknown key, a value of a wrong type, a value
            this engine does not implement, or breaks a rule of model.md section 1.3. One line that starts
            with the path and lists everything found.
    """
    file = path / "config.json" if path.is_dir() else path
    if file != path and not file.exists():
        raise ConfigError(f"{path}: holds no config.json; give the folder of a checkpoint or a config.json")
    document = read_json_object(file)
    try:
        return parse_model_config(document)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def parse_model_config(document: Mapping[str, object]) -> ModelConfig:
    """Turn the parsed content of a config.json into a ``ModelConfig``.

    Raises:
        ConfigError: as ``load_model_config``, without a path in front.
    """
    problems: list[str] = []
    text = _section(document, "text_config", problems)
    if text is None:
        raise ConfigError("missing key text_config; the keys of the language model live under it")
    _check_fixed(document, _FIXED_TOP, "", problems)
    _check_fixed(text, _FIXED_TEXT, "text_config.", problems)
    known = {*_FIXED_TOP, *_IGNORED_TOP, *_TOP_IDS, "image_token_id"}
    known |= {"text_config", "vision_config", "quantization_config"}
    _check_unknown(document, known, "", problems)
    fields = set(ModelConfig.__dataclass_fields__) - _OUTSIDE_TEXT
    known_text = {*fields, *_FIXED_TEXT, *_IGNORED_TEXT, *_OUTSIDE_FIELDS, "index_k_source_layer_ids"}
    _check_unknown(text, known_text, "text_config.", problems)

    values = read_fields(
        ModelConfig,
        text,
        where="text_config.",
        required=_required(text, fields),
        skip=_OUTSIDE_TEXT,
        problems=problems,
    )
    if values.get("candidate_source_layer_id") == -1:
        values["candidate_source_layer_id"] = None
    _check_index_keys(text, problems)
    values |= _read_ids(document, text, problems)
    values["rope_scaling"] = _read_yarn(text, problems)
    values["vision"] = _read_vision(document, problems)
    quantization = _section(document, "quantization_config", problems)
    values["is_quantized"] = quantization is not None
    if quantization is not None:
        _check_fixed(quantization, _FIXED_QUANTIZATION, "quantization_config.", problems, required=True)
    if problems:
        raise ConfigError("; ".join(problems))
    return ModelConfig(**values)


def _required(text: Mapping[str, object], fields: set[str]) -> set[str]:
    """Keys that a part of the model needs, if the configuration switches that part on."""
    required: set[str] = set()
    if text.get("engram_layer_ids"):
        required |= {name for name in fields if name.startswith("engram_")}
    if text.get("num_nextn_predict_layers"):
        required |= {name for name in fields if name.startswith("dspark_")}
    if text.get("candidate_source_layer_id") not in (None, -1):
        required |= {name for name in fields if name.startswith("candidate_")}
    return required


def _section(document: Mapping[str, object], key: str, problems: list[str]) -> dict[str, Any] | None:
    section = document.get(key)
    if section is None:
        return None
    if not isinstance(section, dict):
        problems.append(f"{key} must be an object, is {json_type(section)}")
        return {}
    return section


def _check_fixed(
    section: Mapping[str, object],
    fixed: Mapping[str, object],
    where: str,
    problems: list[str],
    *,
    required: bool = False,
) -> None:
    for key, value in fixed.items():
        if key not in section:
            if required:
                problems.append(f"missing key {where}{key}")
            continue
        given = section[key]
        is_same_kind = isinstance(given, bool) == isinstance(value, bool)
        if given != value or not is_same_kind:
            problems.append(f"{where}{key}={show(given)} is not supported, only {show(value)} is")


def _check_unknown(section: Mapping[str, object], known: set[str], where: str, problems: list[str]) -> None:
    for key in section:
        if key not in known:
            problems.append(f"unknown key {where}{key}")


def _check_index_keys(text: Mapping[str, object], problems: list[str]) -> None:
    owners, sources = text.get("index_k_source_layer_ids"), text.get("kv_source_layer_ids")
    if owners is not None and owners != sources:
        problems.append(
            f"text_config.index_k_source_layer_ids={show(owners)} differs from "
            f"text_config.kv_source_layer_ids={show(sources)}, which is not supported"
        )


def _read_ids(
    document: Mapping[str, object], text: Mapping[str, object], problems: list[str]
) -> dict[str, int]:
    """Special ids live at the top level; text_config may repeat them but not differ."""
    ids: dict[str, int] = {}
    for key in (*_TOP_IDS, "image_token_id"):
        if key in document and key in text and document[key] != text[key]:
            problems.append(f"{key}={show(document[key])} contradicts text_config.{key}={show(text[key])}")
        value = document.get(key, text.get(key))
        if value is None:
            if key != "image_token_id":
                problems.append(f"missing key {key}")
        elif isinstance(value, bool) or not isinstance(value, int):
            problems.append(f"{key} must be an integer, is {show(value)}")
        else:
            ids[key] = value
    return ids


def _read_yarn(text: Mapping[str, object], problems: list[str]) -> YarnConfig | None:
    section = _section(text, "rope_scaling", problems)
    if section is None:
        return None
    where = "text_config.rope_scaling."
    _check_fixed(section, {"type": "yarn", "rope_type": "yarn"}, where, problems)
    if "type" not in section and "rope_type" not in section:
        problems.append(f"missing key {where}rope_type")
    fields = set(YarnConfig.__dataclass_fields__)
    _check_unknown(section, fields | {"type", "rope_type"}, where, problems)
    before = len(problems)
    values = read_fields(YarnConfig, section, where=where, required=(), skip=(), problems=problems)
    return YarnConfig(**values) if len(problems) == before else None


def _read_vision(document: Mapping[str, object], problems: list[str]) -> VisionConfig | None:
    """Other keys of vision_config are left alone: the tower is counted by ``inspect``, never run."""
    section = _section(document, "vision_config", problems)
    if section is None:
        return None
    before = len(problems)
    values = read_fields(
        VisionConfig, section, where="vision_config.", required=(), skip=(), problems=problems
    )
    if len(problems) > before or values.get("num_hidden_layers") == 0:
        return None
    vision = VisionConfig(**values)
    for key in VisionConfig.__dataclass_fields__:
        if getattr(vision, key) < 1:
            problems.append(f"vision_config.{key}={getattr(vision, key)} must be positive")
    return vision
