"""Stand-alone reference values: rotation, Sinkhorn, hyper-connection, Engram tables, cache round trips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from deepinfer.engine.checkpoint import open_checkpoint
from deepinfer.engine.model.engram_hash import EngramHash
from deepinfer.engine.model.engram_vocabulary import build_vocabulary_map
from deepinfer.engine.model.rope import RopeTable, rope_frequencies
from deepinfer.engine.model_config import ModelConfig, YarnConfig
from deepinfer.kernels.cpu.hyper import sinkhorn
from deepinfer.kernels.cpu.workers import Workers
from deepinfer.kernels.dispatch import select_ops


@pytest.fixture(scope="module")
def units(golden_dir: Path) -> Iterator[dict[str, torch.Tensor]]:
    with safe_open(golden_dir / "A_units.safetensors", "pt") as stored:
        yield {name: stored.get_tensor(name) for name in stored.keys()}


@pytest.fixture(scope="module")
def config(golden_dir: Path) -> ModelConfig:
    return open_checkpoint(golden_dir / "ckpt_A_quantized").config


@pytest.mark.parametrize("kernel_set", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("name", "op"), [("fp8_block32", "mxfp8_"), ("mxfp4_block32", "mxfp4_"), ("nvfp4_block16", "fp4_")]
)
@pytest.mark.parametrize("suffix", ["", "_bf16"])
def test_cache_round_trips_are_bit_exact(
    kernel_set: str, name: str, op: str, suffix: str, units: dict[str, torch.Tensor]
) -> None:
    ops = select_ops(kernel_set, bf16=False, num_threads=1)
    got = getattr(ops, op)(units[f"quant.input{suffix}"].float().clone())
    want = units[f"quant.{name}{suffix}"].float()
    assert torch.equal(got.view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("iterations", [1, 2, 3, 20])
def test_sinkhorn(iterations: int, units: dict[str, torch.Tensor]) -> None:
    got = sinkhorn(units["sinkhorn.logits"], iterations, 1e-6, Workers(1))
    assert (got - units[f"sinkhorn.out_iters{iterations}"]).abs().max() <= 1e-6


def test_sinkhorn_of_the_specification() -> None:
    logits = torch.tensor([[[2.0, 0, 0, 0], [0, 1, -1, 0], [0.5, 0, 3, 0], [0, 0, 0, -2]]])
    got = sinkhorn(logits, 20, 1e-6, Workers(1))[0]
    want = torch.tensor([0.5509898, 0.1087896, 0.0590538, 0.2811659])
    assert (got[0] - want).abs().max() < 1e-6
    assert (got.sum(0) - 0.999999).abs().max() < 1e-6


@pytest.mark.parametrize("kernel_set", ["cpu", "reference"])
def test_hyper_connection_site(kernel_set: str, units: dict[str, torch.Tensor], golden_dir: Path) -> None:
    checkpoint = open_checkpoint(golden_dir / "ckpt_A_quantized")
    config, ops = checkpoint.config, select_ops(kernel_set, bf16=False, num_threads=1)
    streams = units["hc.streams"]
    best = None
    for prefix in [
        f"layers.{layer}.hc_{site}" for layer in range(config.num_hidden_layers) for site in ("attn", "ffn")
    ]:
        fn, base, scale = (checkpoint.weight(f"{prefix}_{part}") for part in ("fn", "base", "scale"))
        mixes = ops.hc_mix(streams, ops.pack_linear(fn), base, scale, 20, config.hc_eps, config.rms_norm_eps)
        if (mixes[0] - units["hc.pre"]).abs().max() <= 1e-5:  # the file does not say which site it used
            best = mixes
    assert best is not None, "no site of the checkpoint gives hc.pre"
    pre, post, comb = best
    assert (post - units["hc.post"]).abs().max() <= 1e-5
    assert (comb - units["hc.comb"]).abs().max() <= 1e-5
    assert (ops.hc_collapse(streams, pre) - units["hc.collapsed"]).abs().max() <= 1e-5
    expanded = ops.hc_expand(streams, units["hc.sublayer_output"], post, comb)
    assert (expanded - units["hc.expanded"]).abs().max() <= 1e-5


@pytest.mark.parametrize("kernel_set", ["cpu", "reference"])
@pytest.mark.parametrize("kind", ["window", "compressed"])
def test_rotation(kernel_set: str, kind: str, units: dict[str, torch.Tensor], config: ModelConfig) -> None:
    yarn = config.rope_scaling if kind == "compressed" else None
    base = config.compress_rope_theta if kind == "compressed" else config.rope_theta
    frequencies = rope_frequencies(config.qk_rope_head_dim, base, yarn)
    positions = units["rope.positions"].long()
    angles = positions.numpy().astype(np.float32)[:, None] * frequencies[None]
    want = units[f"rope.angles_{kind}"].numpy()
    assert (np.abs(angles - want) <= 1e-6 * np.abs(want)).all()
    table = RopeTable(frequencies)
    table.reserve(int(positions.max()) + 1)
    ops = select_ops(kernel_set, bf16=False, num_threads=1)
    near = positions < 5000
    got = ops.rotate_(units["rope.vector"].clone(), table.cos, table.sin, positions)
    difference = (got - units[f"rope.rotated_{kind}"]).abs()
    assert difference[near].max() <= 1e-5
    assert difference.max() <= 0.02
    if kind == "compressed":
        back = ops.rotate_(units["rope.vector"].clone(), table.cos, table.sin, positions, inverse=True)
        difference = (back - units["rope.rotated_compressed_inverse"]).abs()
        assert difference[near].max() <= 1e-5
        assert difference.max() <= 0.02


def test_engram_tables(units: dict[str, torch.Tensor], config: ModelConfig, golden_dir: Path) -> None:
    hashes = EngramHash(config, build_vocabulary_map(golden_dir / "ckpt_A_quantized/tokenizer.json", config))
    assert np.array_equal(hashes.vocabulary_map, units["engram.token_map"].numpy())
    assert hashes.pad == int(units["engram.pad_compressed_id"])
    assert np.array_equal(np.stack(hashes.multipliers), units["engram.multipliers"].numpy())
    assert np.array_equal(np.stack(hashes.primes), units["engram.primes"].numpy())
    assert np.array_equal(np.stack(hashes.offsets), units["engram.offsets"].numpy())
    ids = np.concatenate([[-1] * 3, units["engram.example_ids"].numpy()]).astype(np.int64)
    recent = np.stack([ids[3 - back : len(ids) - back] for back in range(4)], axis=1)
    history = hashes.compressed_history(recent)
    for slot in range(2):
        assert np.array_equal(hashes.rows(slot, history), units["engram.example_rows"][slot].numpy())


def test_yarn_frequencies_of_the_released_model() -> None:
    yarn = YarnConfig(factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536)
    scaled = rope_frequencies(64, 160000.0, yarn)
    plain = rope_frequencies(64, 160000.0, None)
    want_plain = {0: 1.0, 1: 0.687656045, 15: 3.63553851e-3, 16: 2.49999994e-3, 31: 9.08884704e-6}
    want_scaled = {
        15: 3.63553851e-3,
        16: 2.26562495e-3,
        20: 2.96977783e-4,
        24: 1.95312532e-5,
        31: 5.68052940e-7,
    }
    for i, value in want_plain.items():
        assert plain[i] == np.float32(value), i
    for i, value in want_scaled.items():
        assert scaled[i] == np.float32(value), i
