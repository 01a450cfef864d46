"""config.json as a file: every way it can be unreadable is one line that starts with its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.engine.config import load_model_config
from deepinfer.engine.config_rules import broken_rules
from deepinfer.engine.engram_primes import engram_primes, is_prime
from deepinfer.engine.errors import ConfigError

BAD_FILES: list[tuple[str, bytes, str]] = [
    ("cut", b'{"text_config": {"vocab_size": ', "not valid JSON at line 1"),
    ("encoding", b'{"text_config": "\xff"}', "not UTF-8 at byte 17"),
    ("array", b"[]", "must hold a JSON object, holds an array"),
    ("duplicate", b'{"dtype": 1, "dtype": 2}', 'key "dtype" appears twice'),
    ("nested", b"[" * 100_000, "not valid JSON"),
    ("long integer", b'{"dtype": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ("no text model", b"{}", "missing key text_config"),
    ("text model of wrong type", b'{"text_config": 3}', "text_config must be an object, is an integer"),
]


@pytest.mark.parametrize(
    ("content", "reason"), [bad[1:] for bad in BAD_FILES], ids=[bad[0] for bad in BAD_FILES]
)
def test_unreadable_file_is_one_line_with_its_path(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_model_config(tmp_path)
    assert str(caught.value).startswith(f"{file}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_folder_without_a_configuration_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load_model_config(tmp_path)


def test_absent_path_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model_config(tmp_path / "nowhere.json")


@pytest.mark.parametrize("value", [True, 1.5, "2", None, [2], 2**63])
def test_integer_keys_take_integers_only(
    tmp_path: Path, released_document: dict[str, Any], value: object
) -> None:
    released_document["text_config"]["hc_mult"] = value
    file = tmp_path / "config.json"
    file.write_text(json.dumps(released_document), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"text_config\.hc_mult must be an integer"):
        load_model_config(file)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", '"1"', "true"])
def test_number_keys_take_finite_numbers_only(
    tmp_path: Path, released_document: dict[str, Any], value: str
) -> None:
    released_document["text_config"]["rope_theta"] = "HERE"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(released_document).replace('"HERE"', value), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"text_config\.rope_theta must be a finite number"):
        load_model_config(file)


def test_yarn_of_another_kind_is_refused(tmp_path: Path, released_document: dict[str, Any]) -> None:
    released_document["text_config"]["rope_scaling"] |= {"rope_type": "linear", "mscale": 1.0}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(released_document), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_model_config(file)
    assert 'rope_scaling.rope_type="linear" is not supported' in str(caught.value)
    assert "unknown key text_config.rope_scaling.mscale" in str(caught.value)


def test_valid_configuration_breaks_no_rule(released_config: Path) -> None:
    assert broken_rules(load_model_config(released_config)) == []


def test_primes_of_the_released_tables_are_the_published_ones() -> None:
    first, second = engram_primes(num_layers=2, vocab_size=16_000_000, max_ngram_size=4, num_heads=8)
    assert (first[0], first[-1], sum(first)) == (16000057, 16000463, 384006168)
    assert (second[0], second[-1], sum(second)) == (16000477, 16000889, 384016682)
    assert len(first) == len(second) == 24


def test_primality_agrees_with_trial_division() -> None:
    sieve = [all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, 5000)]
    assert [is_prime(n) for n in range(2, 5000)] == sieve
    assert not is_prime(1)
    assert not is_prime(3215031751)  # composite, passes Miller-Rabin for the bases 2, 3, 5 and 7
    assert is_prime(2**61 - 1)
