"""The compressed vocabulary of Engram: raw token id -> dense id of its normalised text.

model.md section 6.1.

The one place where the engine looks at a tokenizer, when it loads a checkpoint folder. Normalisation runs in
the tokenizers library, whose Unicode tables do not change with the Python version.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, normalizers

from deepinfer.engine.errors import CheckpointError
from deepinfer.engine.model_config import ModelConfig

_ONE_SPACE = "\ue000"


def _normaliser() -> normalizers.Sequence:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _ONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_ONE_SPACE, " "),
        ]
    )


def build_vocabulary_map(tokenizer_file: Path, config: ModelConfig) -> npt.NDArray[np.int64]:
    """Compressed id of every raw id, int64 [vocab_size], numbered by first appearance.

    Raises:
        CheckpointError: tokenizer.json is missing or unreadable, or gives another number of distinct ids than
            ``engram_compressed_vocab_size`` says.
    """
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises bare Exception for a missing and for a malformed file
        raise CheckpointError(
            f"{tokenizer_file}: cannot be read as a tokenizer ({error}); Engram needs it"
        ) from error
    normaliser = _normaliser()
    seen: dict[str, int] = {}
    compressed = np.empty(config.vocab_size, np.int64)
    for token_id in range(config.vocab_size):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token_id) or text
        else:
            key = normaliser.normalize_str(text) or text
        compressed[token_id] = seen.setdefault(key, len(seen))
    if len(seen) != config.engram_compressed_vocab_size:
        raise CheckpointError(
            f"{tokenizer_file}: the tokenizer compresses to {len(seen)} ids, "
            f"engram_compressed_vocab_size is {config.engram_compressed_vocab_size}; "
            "it belongs to another checkpoint"
        )
    return compressed
