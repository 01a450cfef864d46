from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deepinfer
from deepinfer.engine.errors import InputError
from deepinfer.eval.tokenizer import TextTokenizer

MINI = Path(deepinfer.__file__).parent / "models" / "mini"


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(MINI, bos_token_id=0, vocab_size=4096)


def edited(tmp_path: Path, **changes: Any) -> Path:
    """A folder with the bundled tokenizer, changed."""
    content = json.loads((MINI / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | changes))
    return tmp_path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_the_tokens_of_any_text_spell_its_bytes(tokenizer: TextTokenizer, text: str) -> None:
    encoded = tokenizer.encode(text, "test")
    assert int(encoded.token_bytes.sum()) == len(text.encode())
    assert encoded.token_ids[0] == 0
    assert encoded.token_bytes[0] == 0
    assert 0 not in encoded.token_ids[1:]


def test_the_begin_token_is_added_once_although_the_file_would_add_it_too(tmp_path: Path) -> None:
    begin = "<|begin_of_sentence|>"
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {begin: {"id": begin, "ids": [0], "tokens": [begin]}},
    }
    eager = TextTokenizer(edited(tmp_path, post_processor=template), bos_token_id=0, vocab_size=4096)
    ids = eager.encode("Once upon a time", "test").token_ids.tolist()
    assert ids.count(0) == 1
    assert ids[0] == 0
    assert ids == TextTokenizer(MINI, 0, 4096).encode("Once upon a time", "test").token_ids.tolist()


@pytest.mark.parametrize("special", ["<|begin_of_sentence|>", "<|end_of_sentence|>"])
def test_a_text_that_spells_a_special_token_is_refused(tokenizer: TextTokenizer, special: str) -> None:
    with pytest.raises(InputError, match=r"sample 'a': text holds the special token '<\|.*' at character 3"):
        tokenizer.encode(f"ab {special}cd", "sample 'a'")


def test_a_tokenizer_that_normalises_is_refused(tmp_path: Path) -> None:
    lossy = TextTokenizer(edited(tmp_path, normalizer={"type": "Lowercase"}), 0, 4096)
    lossy.encode("fine", "test")
    with pytest.raises(InputError, match="do not spell this text back"):
        lossy.encode("Not fine", "test")


def test_a_text_is_never_tokenized_in_parts(tokenizer: TextTokenizer) -> None:
    """The pieces of a text have other tokens than the text: only the whole is encoded, windows cut ids."""
    text = "the perplexity of something"
    parts = [tokenizer.encode(text[:9], "a").token_ids[1:], tokenizer.encode(text[9:], "b").token_ids[1:]]
    assert [*parts[0], *parts[1]] != tokenizer.encode(text, "c").token_ids[1:].tolist()


def test_a_tokenizer_of_another_model_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4096 entries do not fit the model's 1000 ids"):
        TextTokenizer(MINI, bos_token_id=0, vocab_size=1000)
    with pytest.raises(InputError, match=r"tokenizer.json: cannot be read"):
        TextTokenizer(tmp_path, bos_token_id=0, vocab_size=4096)
    (tmp_path / "tokenizer.json").write_bytes((MINI / "tokenizer.json").read_bytes()[:1000])
    with pytest.raises(InputError, match=r"tokenizer.json: is not a readable tokenizer"):
        TextTokenizer(tmp_path, bos_token_id=0, vocab_size=4096)
