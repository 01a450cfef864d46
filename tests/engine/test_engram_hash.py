"""Hash constants and rows that the specification writes out for the released and the mini configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deepinfer.engine.config import load_model_config
from deepinfer.engine.engram_primes import engram_primes
from deepinfer.engine.errors import CheckpointError
from deepinfer.engine.model.engram_hash import EngramHash, hash_multipliers
from deepinfer.engine.model.engram_vocabulary import build_vocabulary_map
from deepinfer.engine.model_config import ModelConfig


@pytest.fixture(scope="module")
def mini_config(mini_dir: Path) -> ModelConfig:
    return load_model_config(mini_dir)


def test_released_multipliers() -> None:
    want = [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    assert hash_multipliers(1, 99092, 4).tolist() == want
    want = [67716810739261, 51510806800915, 30921347202721, 82619226485591]
    assert hash_multipliers(14, 99092, 4).tolist() == want


def test_released_primes() -> None:
    first, second = engram_primes(num_layers=2, vocab_size=16_000_000, max_ngram_size=4, num_heads=8)
    assert (first[0], first[-1], sum(first)) == (16000057, 16000463, 384006168)
    assert (second[0], second[-1], sum(second)) == (16000477, 16000889, 384016682)


@pytest.fixture
def released_hash() -> EngramHash:
    """The released hash over ids that are compressed already, pad id 2; built without a configuration."""
    hashes = EngramHash.__new__(EngramHash)
    hashes.vocabulary_map, hashes.pad, hashes.max_ngram_size = np.arange(99092), 2, 4
    hashes.multipliers = [hash_multipliers(layer, 99092, 4) for layer in (1, 14)]
    primes = engram_primes(num_layers=2, vocab_size=16_000_000, max_ngram_size=4, num_heads=8)
    hashes.primes = [np.array(layer, np.int64) for layer in primes]
    hashes.offsets = [np.concatenate([[0], np.cumsum(p)[:-1]]) for p in hashes.primes]
    return hashes


def test_released_rows(released_hash: EngramHash) -> None:
    recent = np.array([[5, -1, -1, -1], [42, 99091, 17, 5]], np.int64)
    history = released_hash.compressed_history(recent)
    assert history[0].tolist() == [5, 2, 2, 2]
    first, second = released_hash.rows(0, history), released_hash.rows(1, history)
    assert first[0, :4].tolist() == [5412672, 18319159, 35492627, 60880252]
    assert first[0, -1] == 372009279
    assert first[1, :3].tolist() == [13131409, 22107638, 46286683]
    assert first[1, -1] == 370256351
    assert second[0, :3].tolist() == [6939818, 27264717, 45254833]
    assert second[1, -2:].tolist() == [354581237, 382145690]


def test_everything_before_a_gap_is_the_pad(released_hash: EngramHash) -> None:
    history = released_hash.compressed_history(np.array([[7, 8, -1, 9]], np.int64))
    assert history.tolist() == [[7, 8, 2, 2]]


def test_the_bundled_tokenizer_compresses_to_its_config(mini_dir: Path, mini_config: ModelConfig) -> None:
    compressed = build_vocabulary_map(mini_dir / "tokenizer.json", mini_config)
    assert len(np.unique(compressed)) == mini_config.engram_compressed_vocab_size == 3121
    assert compressed[0] == 0


def test_a_foreign_tokenizer_is_refused(golden_dir: Path, mini_config: ModelConfig) -> None:
    with pytest.raises(CheckpointError, match=r"engram_compressed_vocab_size is 3121; it belongs to another"):
        build_vocabulary_map(golden_dir / "ckpt_A_quantized/tokenizer.json", mini_config)


def test_a_missing_tokenizer_is_refused(tmp_path: Path, mini_config: ModelConfig) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read as a tokenizer .*; Engram needs it"):
        build_vocabulary_map(tmp_path / "tokenizer.json", mini_config)
