from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.engine.errors import InputError
from deepinfer.eval.text_input import notes_on, read_documents


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "bad.jsonl: is empty", id="no lines"),
        pytest.param(b'{"id": "a", "text": "x"}\n\n', "bad.jsonl:2: blank line", id="blank line"),
        pytest.param(b'{"id": "a", "text": \n', "bad.jsonl:1: bad JSON", id="bad JSON"),
        pytest.param(b'["a"]\n', "bad.jsonl:1: is not a JSON object", id="not an object"),
        pytest.param(b"[" * 100000, "bad.jsonl:1: JSON that cannot be read .*recursion", id="nested"),
        pytest.param(b'{"id": ' + b"7" * 9999 + b"}", "bad.jsonl:1: JSON that cannot be read", id="long"),
        pytest.param(b'{"id": "a"}\n', "bad.jsonl:1: field 'text' is missing", id="missing field"),
        pytest.param(b'{"id": "a", "text": "x", "txet": 1}\n', "unknown field 'txet'", id="unknown field"),
        pytest.param(b'{"id": "a", "id": "b", "text": "x"}\n', "field 'id' is given twice", id="field twice"),
        pytest.param(b'{"id": 7, "text": "x"}\n', "id must be a non-empty string, not 7", id="number as id"),
        pytest.param(b'{"id": "", "text": "x"}\n', "id must be a non-empty string", id="empty id"),
        pytest.param(b'{"id": "a\\nb", "text": "x"}\n', "unprintable", id="newline in id"),
        pytest.param(b'{"id": "a", "text": 7}\n', "text must be a string, not int", id="number as text"),
        pytest.param(b'{"id": "a", "text": ""}\n', "bad.jsonl:1: sample 'a': text is empty", id="empty text"),
        pytest.param(
            b'{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n',
            r"bad.jsonl:2: id 'a' was given at .*bad.jsonl:1",
            id="id twice",
        ),
        pytest.param(b'{"id": "a", "text": "\xff"}\n', "bad.jsonl:1: invalid UTF-8 at byte 21", id="Latin"),
        pytest.param(b'\xef\xbb\xbf{"id": "a", "text": "x"}\n', "bad.jsonl:1: starts with a byte", id="BOM"),
        pytest.param(
            b'{"id": "a", "text": "ab\\ud800c"}\n',
            r"bad.jsonl:1: sample 'a': lone surrogate U\+D800 at character 2",
            id="lone surrogate",
        ),
    ],
)
def test_a_bad_line_is_refused_by_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_documents(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "sample 'bad': text is empty", id="empty"),
        pytest.param(b"caf\xe9", "invalid UTF-8 at byte 3 \\(0xe9\\)", id="Latin-1"),
        pytest.param(b"\xef\xbb\xbfhello", "byte order mark", id="BOM"),
    ],
)
def test_a_bad_text_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_documents(path)


def test_an_unreadable_file_and_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_documents(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="unknown kind of file"):
        read_documents(tmp_path / "text.csv")


def test_a_text_is_kept_byte_for_byte_and_crlf_is_mentioned(tmp_path: Path) -> None:
    """Neither line ends, nor trailing space, nor a decomposed accent is normalised."""
    raw = b" two\r\nlines e\xcc\x81 \xe2\x80\xa8 \n\n"
    path = tmp_path / "page.txt"
    path.write_bytes(raw)
    (document,) = read_documents(path)
    assert document.sample_id == "page"
    assert document.text.encode() == raw
    assert document.num_bytes == len(raw)
    assert notes_on([document]) == (
        "1 document(s) with CRLF line ends, first 'page': kept and scored as they stand",
    )


def test_a_line_separator_inside_a_text_does_not_end_the_line(write_texts: Callable[..., Path]) -> None:
    documents = read_documents(write_texts("one\u2028two\u0085three"))
    assert [document.text for document in documents] == ["one\u2028two\u0085three"]
    assert notes_on(documents) == ()


def test_crlf_between_json_lines_is_not_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "dos.jsonl"
    path.write_bytes(b'{"id": "a", "text": "x"}\r\n{"id": "b", "text": "y"}\r\n')
    assert [document.text for document in read_documents(path)] == ["x", "y"]
