"""Damaged and mismatched checkpoints: one line that names the file or every tensor concerned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from deepinfer.engine.checkpoint import open_checkpoint
from deepinfer.engine.checkpoint_layout import INDEX_FILE, SINGLE_FILE, TensorMismatchError
from deepinfer.engine.errors import CheckpointError
from deepinfer.engine.safetensors_header import read_safetensors_header

Header = dict[str, Any]
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path, quantised_dir: Path) -> Path:
    """A copy of the sharded checkpoint, free to be damaged."""
    return Path(shutil.copytree(quantised_dir, tmp_path / "checkpoint", copy_function=shutil.copyfile))


def edit_header(file: Path, change: Callable[[Header], None]) -> None:
    """Rewrite the header of a safetensors file; the payload stays as it is."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + length :])


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrite the checkpoint as a single file with changed tensors."""
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
        file.unlink()
    (folder / INDEX_FILE).unlink()
    change(tensors)
    save_file(tensors, folder / SINGLE_FILE)


def message_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_mismatch_is_in_one_error(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["layers.0.attn_norm.weight"], tensors["layers.2.attn.wq_b.scale"]
        tensors["layers.0.attn.bias"] = torch.zeros(3)
        tensors["norm.weight"] = torch.zeros(129, dtype=torch.bfloat16)
        tensors["layers.1.attn.wkv.weight"] = torch.zeros(64, 128)
        tensors["layers.1.attn.attn_sink"] = torch.zeros(4, dtype=torch.bfloat16)

    edit_tensors(folder, change)
    with pytest.raises(TensorMismatchError) as caught:
        open_checkpoint(folder)
    error = caught.value
    assert error.missing == ("layers.0.attn_norm.weight", "layers.2.attn.wq_b.scale")
    assert error.leftover == ("layers.0.attn.bias",)
    assert error.mis_shaped == ("norm.weight is [129], expected [128]",)
    assert error.mis_typed == (
        "layers.1.attn.wkv.weight is F32, expected F8_E4M3",
        "layers.1.attn.attn_sink is BF16, expected F32",
    )
    message = str(error)
    for name in (*error.missing, *error.leftover, *error.mis_shaped, *error.mis_typed):
        assert name in message
    assert "\n" not in message


def test_each_kind_of_mismatch_is_enough(folder: Path) -> None:
    changes: dict[str, Callable[[dict[str, torch.Tensor]], None]] = {
        "1 missing (": lambda tensors: tensors.__delitem__("norm.weight"),
        "1 leftover (": lambda tensors: tensors.update({"norm.bias": torch.zeros(128)}),
        "1 of the wrong shape (": lambda tensors: tensors.update({"norm.weight": torch.zeros(2)}),
        "1 of the wrong dtype (": lambda tensors: tensors.update({"norm.weight": torch.zeros(128).half()}),
    }
    for number, (words, change) in enumerate(changes.items()):
        copy = Path(shutil.copytree(folder, folder.with_name(f"copy{number}")))
        edit_tensors(copy, change)
        message = message_of(copy)
        assert f"{copy}: tensors do not match config.json: {words}" in message
        assert message.count("(") == 1


def test_long_lists_are_cut_in_the_message_only(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            del tensors[name]

    edit_tensors(folder, change)
    with pytest.raises(TensorMismatchError) as caught:
        open_checkpoint(folder)
    assert len(caught.value.missing) == (8 * 8 + 3 * 6) * 6
    assert "492 missing" in str(caught.value)
    assert "and 484 more" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_quantised_weights_under_an_unquantised_configuration_are_mistyped(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del document["quantization_config"]
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    message = message_of(folder)
    assert "layers.0.attn.wq_a.weight is F8_E4M3, expected BF16 or F32" in message
    assert "leftover (" in message


def test_file_cut_short_is_named(folder: Path) -> None:
    data = (folder / SHARD).read_bytes()
    for size in (len(data) - 1, len(data) // 2, 100, 8, 3, 0):
        (folder / SHARD).write_bytes(data[:size])
        message = message_of(folder)
        assert message.startswith(f"{folder / SHARD}: ")
        assert "cut short" in message or "not a whole safetensors file" in message


def test_file_with_bytes_behind_its_end_is_named(folder: Path) -> None:
    (folder / SHARD).write_bytes((folder / SHARD).read_bytes() + b"\0")
    assert f"{folder / SHARD}: too long" in message_of(folder)


@given(st.integers(0, 8 * 2000 - 1))
@settings(max_examples=150)
def test_flipped_header_bit_is_an_error_or_a_visible_difference(small_file: Path, bit: int) -> None:
    """A flip that leaves a lawful header renames or retypes a tensor, which read_layout then reports."""
    data = bytearray(small_file.read_bytes())
    metadata_end = data.index(b"}") + 1
    data[bit // 8] ^= 1 << bit % 8
    flipped = small_file.with_name("flipped.safetensors")
    flipped.write_bytes(data)
    result = entries_or_message(flipped)
    if isinstance(result, str):
        assert result.startswith(f"{flipped}: ")
    else:
        assert result != entries_or_message(small_file) or bit // 8 < metadata_end


def entries_or_message(file: Path) -> dict[str, tuple[str, tuple[int, ...], int]] | str:
    try:
        return {name: (t.dtype, t.shape, t.start) for name, t in read_safetensors_header(file).items()}
    except CheckpointError as error:
        return str(error)


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A safetensors file of which the first 2,000 bytes lie in its header."""
    file = tmp_path_factory.mktemp("header") / "small.safetensors"
    tensors = {f"layers.{i}.x.weight": torch.full((2, 2), float(i)) for i in range(40)}
    save_file(tensors, file, metadata={"format": "pt"})
    assert int.from_bytes(file.read_bytes()[:8], "little") > 2000
    return file


BAD_ENTRIES: list[tuple[str, Header, str]] = [
    ("dtype", {"dtype": "F7"}, "unknown dtype 'F7'"),
    ("shape", {"shape": [-1, 128]}, "impossible shape"),
    ("shape type", {"shape": 128}, "impossible shape"),
    ("offsets", {"data_offsets": [0]}, "impossible data_offsets"),
    ("size", {"shape": [127]}, "spans"),
]


@pytest.mark.parametrize(
    ("change", "reason"), [bad[1:] for bad in BAD_ENTRIES], ids=[bad[0] for bad in BAD_ENTRIES]
)
def test_impossible_header_entry_is_named(folder: Path, change: Header, reason: str) -> None:
    edit_header(folder / SHARD, lambda header: header["layers.0.attn_norm.weight"].update(change))
    message = message_of(folder)
    assert message.startswith(f"{folder / SHARD}: damaged header (layers.0.attn_norm.weight ")
    assert reason in message


def test_overlapping_tensors_are_refused(folder: Path) -> None:
    def change(header: Header) -> None:
        header["layers.0.attn_norm.weight"]["data_offsets"] = header["layers.0.ffn_norm.weight"][
            "data_offsets"
        ]

    edit_header(folder / SHARD, change)
    message = message_of(folder)
    assert "overlaps the tensor before it" in message or "leaves a gap before it" in message


def test_gap_between_tensors_is_refused(folder: Path) -> None:
    """Bytes that no tensor owns: the last tensor is moved behind eight more."""

    def change(header: Header) -> None:
        entries = [value for name, value in header.items() if name != "__metadata__"]
        last = max(entries, key=lambda entry: entry["data_offsets"][1])
        last["data_offsets"] = [offset + 8 for offset in last["data_offsets"]]

    edit_header(folder / SHARD, change)
    (folder / SHARD).write_bytes((folder / SHARD).read_bytes() + bytes(8))
    assert "leaves a gap before it" in message_of(folder)


def test_header_that_is_no_json_is_named(folder: Path) -> None:
    data = bytearray((folder / SHARD).read_bytes())
    data[8] = ord("[")
    (folder / SHARD).write_bytes(data)
    assert message_of(folder).startswith(f"{folder / SHARD}: damaged header")


def test_missing_shard_is_named(folder: Path) -> None:
    (folder / SHARD).unlink()
    assert message_of(folder).startswith(f"{folder / SHARD}: shard is missing")


def test_shard_without_a_promised_tensor_is_named(folder: Path) -> None:
    index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
    other = next(name for name, shard in index["weight_map"].items() if shard != SHARD)
    index["weight_map"][other] = SHARD
    (folder / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")
    assert f"{folder / SHARD}: lacks 1 tensors that {INDEX_FILE} promises ({other})" in message_of(folder)


def test_tensor_in_two_shards_is_refused(folder: Path) -> None:
    other = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(other)
    tensors["norm.weight"] = torch.zeros(128, dtype=torch.bfloat16)
    tensors["embed.weight"] = torch.zeros(512, 128, dtype=torch.bfloat16)
    save_file(tensors, other)
    assert "tensors of another shard again (embed.weight" in message_of(folder)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b"}}'],
)
def test_damaged_index_is_named(folder: Path, content: str) -> None:
    (folder / INDEX_FILE).write_text(content, encoding="utf-8")
    assert message_of(folder).startswith(f"{folder / INDEX_FILE}: damaged index")


def test_single_file_beside_an_index_is_ambiguous(folder: Path) -> None:
    shutil.copyfile(folder / SHARD, folder / SINGLE_FILE)
    assert "holds both" in message_of(folder)


def test_name_with_and_without_prefix_is_refused(folder: Path) -> None:
    edit_tensors(
        folder, lambda tensors: tensors.update({"model.norm.weight": tensors["norm.weight"].clone()})
    )
    assert "holds norm.weight twice" in message_of(folder)


def test_folder_without_weights_and_path_without_folder_say_so(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    assert "holds neither model.safetensors nor" in message_of(folder)
    assert "not a folder" in message_of(folder / "nowhere")


def test_file_that_shrinks_after_opening_is_an_error_not_a_crash(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:100])
    with pytest.raises(CheckpointError, match="has become shorter"):
        checkpoint.weight("embed.weight")


def test_file_that_vanishes_after_opening_is_an_error(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    (folder / SHARD).unlink()
    with pytest.raises(CheckpointError, match="cannot be mapped"):
        checkpoint.weight("embed.weight")
