"""Engram tables on the device of the layers: the values that the host looks up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepinfer.engine.api import EngineConfig, ScoreRequest, ScoreResult
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.engram_device import DeviceEngrams


@pytest.fixture
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=1))


def scored(llm: LLM) -> bytes:
    """Logits of a text, to the bit."""
    (result,) = llm.score([ScoreRequest(request_id="r", token_ids=range(4, 90), return_logits=True)])
    assert isinstance(result, ScoreResult)
    assert result.logits is not None
    return result.logits.tobytes()


def test_tables_on_the_device_move_no_bit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, model = scored(llm), llm._model
    found = model.engrams_on(torch.device("cpu"))
    assert found is not None
    assert found.layers
    monkeypatch.setattr(model, "memories_on_host", None)
    model.device_engrams = found
    assert scored(llm) == wanted
    model.device_engrams = replace(found, pad=found.pad + 1)
    assert scored(llm) != wanted, "another pad would not be seen"


def test_a_damaged_table_stays_on_the_host(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engram = next(block.engram for block in llm._model.blocks if block.engram is not None)
    scale = engram.table._scale
    assert scale is not None
    damaged = scale.copy()
    damaged[3, 0] = 255
    monkeypatch.setattr(engram.table, "_scale", damaged)
    assert llm._model.engrams_on(torch.device("cpu")) is None


def test_large_tables_stay_on_the_host(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer.engine.model.engram_device.MAX_BYTES", 1000)
    assert llm._model.engrams_on(torch.device("cpu")) is None
    assert DeviceEngrams.of(None, [], torch.device("cpu")) is not None
