"""Outputs of a command: refused early where they cannot be written, named late, and never worth a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.engine.errors import ConfigError, InputError
from deepinfer.verify.pack import read_pack
from deepinfer.verify.report import write_files
from deepinfer.verify.result import CheckResult, Status, Verdict
from deepinfer.verify.trace_file import read_trace
from deepinfer.verify.written import require_folders, writing


def test_two_outputs_in_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    require_folders(tmp_path / "a", None, tmp_path / "b")
    with pytest.raises(ConfigError, match="two outputs"):
        require_folders(tmp_path / "a", tmp_path / "sub" / ".." / "a")


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"), writing(full):
        full.write_text("x" * 100_000)


def test_a_file_that_cannot_be_written_is_said_and_the_others_are(tmp_path: Path) -> None:
    result = CheckResult(name="batch", status=Status.DIFFERENT, detail="seen", num_comparisons=1)
    verdict = Verdict(results=(result,), subject={})
    failed = write_files(verdict, junit=tmp_path, html=tmp_path / "a.html", summary=tmp_path / "b.md")
    assert failed == [f"{tmp_path}: Is a directory"]
    assert (tmp_path / "a.html").stat().st_size > 1000
    assert (tmp_path / "b.md").stat().st_size > 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "it does not say so"),
        (b"{", "cut short"),
        (b"\x80\x81\xff", "it is no text"),
        (b'{"format": "deepinfer pack 999"}', "this version reads"),
    ],
)
def test_what_is_no_pack_is_refused_in_words(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.pack"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as error:
        read_pack(path)
    assert "TypeError" not in str(error.value)
    assert "KeyError" not in str(error.value)


def test_what_is_no_trace_is_refused_without_bad_advice(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match="no trace of deepinfer") as error:
        read_trace(path)
    assert "pickle" not in str(error.value)
