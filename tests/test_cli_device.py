"""``--device cuda`` where there is none: one line, exit code 2, whatever the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from deepinfer.cli import main
from deepinfer.commands.options import engine_config
from deepinfer.engine.api import Device, Profile
from deepinfer.engine.config import load_model_config
from deepinfer.engine.errors import CapacityError, ConfigError
from deepinfer.engine.llm import LLM
from deepinfer.engine.loading import require_device_fit
from deepinfer.engine.provenance import cuda_identity
from deepinfer.eval import provenance
from deepinfer.eval.provenance import device_name, platform_of

COMMANDS = (
    ("generate", "--prompt", "a"),
    ("score", "--tokens", "{ids}", "--out", "{out}"),
    ("eval", "--max-tokens", "8"),
    ("verify", "--quick", "--check", "rerun"),
    ("baseline", "check", "--workload", "code"),
    ("bench",),
    ("trace", "--out", "{out}"),
    ("bisect", "batch/2-first"),
    ("doctor", "--profile", "fast"),
)


@pytest.fixture
def without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("without_a_device")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_no_device_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "ids.jsonl").write_text('{"id": "a", "token_ids": [0, 17, 4]}\n', encoding="utf-8")
    places = {"ids": tmp_path / "ids.jsonl", "out": tmp_path / "out"}
    arguments = [part.format(**places) for part in command]
    result = CliRunner().invoke(main, [*arguments, "--device", "cuda"], env={"CI": None})
    assert result.exit_code == 2, result.output
    (line,) = [text for text in result.stderr.splitlines() if "CUDA" in text]
    assert "no CUDA device" in line
    assert "--device cpu" in line


def test_what_the_bits_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    strict, fast = (engine_config(profile.value, "cuda") for profile in (Profile.STRICT, Profile.FAST))
    assert (strict.device, strict.backend) == (Device.CUDA, "triton")
    assert platform_of(strict) == "portable"
    monkeypatch.setattr("deepinfer.engine.provenance.cuda_identity", lambda: ((9, 0), "NVIDIA H200"))
    assert platform_of(fast) == "cuda-sm90-h200"
    assert device_name(strict) == "cuda, NVIDIA H200"
    assert device_name(engine_config("strict")) == "cpu"
    assert provenance.PORTABLE == "portable"


@pytest.mark.usefixtures("without_a_device")
def test_a_platform_needs_its_device(mini_dir: Path) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        cuda_identity()
    llm = LLM(mini_dir)
    with pytest.raises(
        ConfigError, match="weights are packed for cpu on cpu; load the model for triton on cuda"
    ):
        llm.with_config(engine_config("strict", "cuda"))


def test_a_model_must_fit_the_device(mini_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_model_config(mini_dir)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 37))
    with pytest.raises(
        CapacityError, match=r"of device memory, 1.00 MiB are free there; use a larger device"
    ):
        require_device_fit(config, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 36, 1 << 37))
    require_device_fit(config, torch.device("cuda"))
