from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from safetensors.numpy import load_file

from deepinfer.engine.errors import InputError, RunError
from deepinfer.eval.logits_file import LogitsFile


def test_tensors_come_back_bit_for_bit_whichever_are_left_out(tmp_path: Path) -> None:
    names = ["a", "ä/ö", "c" * 50, "d"]
    tensors = {
        name: np.random.default_rng(index).normal(size=(index + 1, 5)).astype(np.float32)
        for index, name in enumerate(names)
    }
    tensors["d"][0, 0] = np.array(0x7F800001, np.uint32).view(np.float32)
    for left_out in [None, *names]:
        path = tmp_path / "logits.safetensors"
        with LogitsFile(path, {name: tensor.shape for name, tensor in tensors.items()}) as file:
            for name, tensor in tensors.items():
                if name != left_out:
                    file.add(name, tensor)
        found = load_file(path)
        assert sorted(found) == sorted(set(names) - {left_out})
        assert all(found[name].tobytes() == tensors[name].tobytes() for name in found)


def test_a_file_of_no_tensors_is_readable(tmp_path: Path) -> None:
    with LogitsFile(tmp_path / "l.safetensors", {"a": (2, 3)}):
        pass
    assert load_file(tmp_path / "l.safetensors") == {}


def test_an_error_leaves_neither_the_file_nor_a_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "l.safetensors"
    path.write_bytes(b"older")

    def die() -> None:
        with LogitsFile(path, {"a": (1, 3)}) as file:
            file.add("a", np.zeros((1, 3), np.float32))
            raise RuntimeError("engine died")

    with pytest.raises(RuntimeError, match="engine died"):
        die()
    assert [entry.name for entry in tmp_path.iterdir()] == ["l.safetensors"]
    assert path.read_bytes() == b"older"


def test_a_full_disk_and_a_missing_folder_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with (
        pytest.raises(RunError, match="No space left on device"),
        LogitsFile(tmp_path / "l.safetensors", {"a": (1, 3)}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match="No such file"), LogitsFile(tmp_path / "absent" / "l", {"a": (1, 3)}):
        pass


def test_the_reserved_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'__metadata__' is reserved"):
        LogitsFile(tmp_path / "l.safetensors", {"__metadata__": (1, 3)})
