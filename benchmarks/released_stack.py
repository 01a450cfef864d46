"""A stack of released-width layers with random weights, one of each kind, built in device memory.

Kinds: window only; source and reuse of ratio 2 in the encoder; source with candidates, reindex and reuse of
ratio 1 in the decoder. Experts are the released 384 in FP4, 6.8 GB a layer; no Engram, no drafts.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from deepinfer.engine.api import EngineConfig, GenerateRequest, PrefillMode, SamplingParams
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.config import load_model_config
from deepinfer.engine.core import CoreConfig, EngineCore
from deepinfer.engine.inventory import expected_tensors
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.prefill import prefill_rule
from deepinfer.engine.scheduler import Limits
from deepinfer.kernels.dispatch import select_ops

CONFIG = Path(__file__).resolve().parents[1] / "tests" / "data" / "released_config.json"
STACK: dict[str, Any] = {
    "num_hidden_layers": 6,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4],
    "candidate_source_layer_id": 3,
    "engram_layer_ids": [],
    "engram_num_embeddings": [],
    "num_nextn_predict_layers": 0,
    "dspark_target_layer_ids": [],
}


def stack_config(**changes: Any) -> ModelConfig:
    """The released configuration with the layers of ``STACK``, and ``changes``."""
    document = json.loads(CONFIG.read_text(encoding="utf-8"))
    document["text_config"] |= STACK | changes
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(document), encoding="utf-8")
        return load_model_config(Path(folder))


class RandomCheckpoint(Checkpoint):
    """Weights of a configuration, drawn when asked for; experts share values, not memory."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        """Nothing is drawn yet."""
        self.config, self._device = config, device
        self._shapes = {spec.name: spec.shape for spec in expected_tensors(config)}
        self._experts: dict[str, torch.Tensor] = {}

    def weight(self, name: str) -> torch.Tensor:
        """Ones for gains; FP4 values for experts; else bfloat16 values with a deviation of 1/sqrt(inputs)."""
        shape = self._shapes[name]
        if ".experts." in name:
            kind = name.rsplit(".", 2)[1]
            if kind not in self._experts:
                inner, width = self.config.moe_intermediate_size, self.config.hidden_size
                self._experts[kind] = self._fp4(*((width, inner) if kind == "w2" else (inner, width)))
            return self._experts[kind]
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        drawn = torch.randn(shape, device=self._device) / shape[-1] ** 0.5
        return drawn.to(torch.bfloat16).float()

    def _fp4(self, rows: int, columns: int) -> torch.Tensor:
        """E2M1 values times a power of two."""
        values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=self._device)
        drawn = values[torch.randint(0, 8, (rows, columns), device=self._device)]
        signs = torch.randint(0, 2, (rows, columns), device=self._device) * 2.0 - 1.0
        return drawn * signs / 256


def stack_core(
    config: EngineConfig, model: Transformer, batch: int, blocks: int, max_chunk: int | None = None
) -> EngineCore:
    """An engine on the stack, ``batch`` sequences of ``blocks`` cache blocks each."""
    limits = Limits(max_rows=8192, max_chunk=max_chunk, max_sequences=batch)
    core = CoreConfig(
        limits=limits,
        num_blocks=batch * blocks + 1,
        prefix_caching=False,
        asynchronous=config.asynchronous is not False,
        graphs=config.recorded_steps is not False,
    )
    return EngineCore(model, prefill_rule(model.config, PrefillMode.OFF, None), core)


def released_gaps(config: EngineConfig, batch: int = 64, steps: int = 40) -> dict[str, Any]:
    """Time between two turns of the stack in which the device has nothing to do, both modes in one run."""
    from gpu_turns import gap_of

    device = torch.device(config.device.value)
    ops = select_ops(config.backend, bf16=config.profile.value == "fast", device=device.type)
    model_config = stack_config(max_position_embeddings=4096)
    model = Transformer(RandomCheckpoint(model_config, device), ops)
    draw = torch.Generator().manual_seed(0)
    params = SamplingParams(temperature=0.0, seed=7, max_tokens=steps, ignore_eos=True)
    asked = [
        GenerateRequest(
            request_id=f"r{i}",
            token_ids=torch.randint(10, 120000, (160,), generator=draw).tolist(),
            params=params,
        )
        for i in range(batch)
    ]
    seen, page = (
        [],
        [f"| released widths, batch {batch} | ms a step | between, ms | share |", "|---|---|---|---|"],
    )
    for name, asynchronous in (("synchronous", False), ("asynchronous", True)):
        core = stack_core(replace(config, asynchronous=asynchronous), model, batch, 4)
        between, whole = gap_of(core, asked)
        seen.append(f"{name} {whole:.2f} ms a step, {between:.3f} ms between ({between / whole:.1%})")
        page.append(f"| {name} | {whole:.2f} | {between:.3f} | {between / whole:.1%} |")
    used = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    seen.append(f"{model_config.num_hidden_layers} layers, peak {used:.1f} GiB")
    return {"verdict": "measured", "seen": "; ".join(seen), "page": page}
