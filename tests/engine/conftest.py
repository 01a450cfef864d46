"""Checkpoints and configurations that several engine tests start from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from deepinfer.engine.checkpoint import open_checkpoint


@pytest.fixture(scope="session")
def released_config() -> Path:
    """The configuration of the released model."""
    return Path(__file__).parents[1] / "data" / "released_config.json"


@pytest.fixture
def released_document(released_config: Path) -> dict[str, Any]:
    """Its parsed content, free to be changed."""
    document: dict[str, Any] = json.loads(released_config.read_text(encoding="utf-8"))
    return document


@pytest.fixture
def quantised_dir(golden_dir: Path) -> Path:
    """The tiny random checkpoint in the released layout: two shards and an index."""
    return golden_dir / "ckpt_A_quantized"


@pytest.fixture(scope="session")
def unquantised_dir(golden_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights decoded: one file, bf16 where that is exact, no scales, no quantization_config."""
    source = golden_dir / "ckpt_A_quantized"
    folder = tmp_path_factory.mktemp("unquantised")
    checkpoint = open_checkpoint(source)
    tensors = {}
    for name in checkpoint.names:
        weight, stored = checkpoint.weight(name), checkpoint.raw(name).dtype
        tensors[name] = weight if stored is torch.float32 else weight.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    document = json.loads((source / "config.json").read_text(encoding="utf-8"))
    del document["quantization_config"]
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    for file in source.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    return folder
