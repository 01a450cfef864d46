"""The reference check on outputs made from the reference itself, exact and then spoilt array by array."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepinfer.engine.api import CacheFormat, EngineConfig, Profile, RequestFailure, ScoreRequest, ScoreResult
from deepinfer.engine.draft_request import DraftRequest, DraftResult
from deepinfer.engine.errors import InputError
from deepinfer.verify.checks import reference
from deepinfer.verify.context import CheckContext
from deepinfer.verify.reference_data import ReferenceSequence, load_references
from deepinfer.verify.result import CheckResult, Status

MakeContext = Callable[..., CheckContext]
Spoil = Callable[[str, dict[str, Any]], None]
MAX_FLOAT = float(np.finfo(np.float32).max)


class Echo:
    """An engine that answers with the reference's own arrays, after ``spoil`` has changed a copy of them."""

    def __init__(self, folder: Path, config: EngineConfig, spoil: Spoil) -> None:
        self.variant = "fp32_noq" if config.cache_format is CacheFormat.NONE else "fp32_q"
        self.references = {item.name: item for item in load_references(folder, self.variant)}
        self.spoil = spoil

    def arrays(self, name: str) -> dict[str, Any]:
        copied = {key: array.copy() for key, array in self.references[name].arrays.items()}
        self.spoil(self.variant, copied)
        return copied

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [self._score(self.references[request.request_id]) for request in requests]

    def _score(self, item: ReferenceSequence) -> ScoreResult:
        arrays, length = self.arrays(item.name), len(item.token_ids)
        # Rows of which the reference keeps a summary only: the best token alone carries the whole normaliser.
        logits = np.full((length, 4096), -MAX_FLOAT, dtype=np.float32)
        logits[np.arange(length), arrays["argmax"]] = arrays["logsumexp"]
        logits[-8:] = arrays["logits_last8"]
        shifted = np.concatenate([np.full((1, 4096), np.nan, np.float32), logits[:-1]])
        return ScoreResult(
            request_id=item.name,
            token_ids=np.array(item.token_ids, dtype=np.int32),
            logprobs=np.concatenate([[np.float32(np.nan)], arrays["token_logprobs"]]),
            ranks=np.zeros(length, dtype=np.int32),
            valid=np.arange(length) > 0,
            logits=shifted,
            final_logits=logits[-1],
        )

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftResult | RequestFailure]:
        return [self._draft(request.request_id, request.anchors) for request in requests]

    def _draft(self, name: str, anchors: Sequence[int]) -> DraftResult:
        arrays = self.arrays(name)
        assert list(anchors) == self.references[name].arrays["dspark_anchor_positions"].tolist()
        return DraftResult(
            request_id=name,
            anchors=arrays["dspark_anchor_positions"],
            tokens=arrays["dspark_tokens"],
            base_logits=arrays["dspark_base_logits"],
            logits=arrays["dspark_logits"],
            confidence_logits=arrays["dspark_confidence_raw"],
            confidences=arrays["dspark_confidence_raw"],
        )


def run(
    make_context: MakeContext, folder: Path, spoil: Spoil, profile: Profile = Profile.STRICT
) -> CheckResult:
    context = make_context(reference_dir=folder, open_subject=lambda config: Echo(folder, config, spoil))
    context.engine = replace(context.engine, profile=profile)
    return reference.run(context)


@pytest.fixture
def folder(mini_dir: Path) -> Path:
    return mini_dir / "reference"


@pytest.mark.parametrize("profile", list(Profile))
def test_the_reference_itself_passes(profile: Profile, make_context: MakeContext, folder: Path) -> None:
    result = run(make_context, folder, lambda variant, arrays: None, profile)
    assert result.status is Status.SAME, result
    assert result.num_inspected > 1000


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("variant", ["fp32_q", "fp32_noq"])
@pytest.mark.parametrize(
    ("array", "offset"),
    [
        ("token_logprobs", 0.2),
        ("argmax", 1),
        ("logsumexp", 0.02),
        ("logits_last8", 0.9),
        ("dspark_base_logits", 2.0),
        ("dspark_logits", 2.0),
        ("dspark_tokens", 1),
        ("dspark_confidence_raw", 0.06),
    ],
)
def test_an_array_beyond_its_bound_is_found(
    array: str, offset: float, variant: str, profile: Profile, make_context: MakeContext, folder: Path
) -> None:
    def spoil(spoilt_variant: str, arrays: dict[str, Any]) -> None:
        if spoilt_variant == variant:
            arrays[array] = (arrays[array] + offset).astype(arrays[array].dtype)

    result = run(make_context, folder, spoil, profile)
    judged = profile is Profile.STRICT or (variant == "fp32_q" and array in {"token_logprobs", "argmax"})
    assert (result.status is Status.DIFFERENT) == judged
    if judged:
        assert variant in result.detail
        assert "allowed" in result.detail


@pytest.mark.parametrize(
    ("array", "exact", "released"), [("token_logprobs", 1e-4, 1.5e-3), ("logits_last8", 4e-4, 1.5e-2)]
)
def test_round_off_within_the_bounds_passes(
    array: str, exact: float, released: float, make_context: MakeContext, folder: Path
) -> None:
    def spoil(variant: str, arrays: dict[str, Any]) -> None:
        arrays[array] += exact if variant == "fp32_noq" else released

    assert run(make_context, folder, spoil).status is Status.SAME


def test_a_single_nan_is_beyond_every_bound(make_context: MakeContext, folder: Path) -> None:
    def spoil(variant: str, arrays: dict[str, Any]) -> None:
        arrays["logits_last8"][4, 100] = np.nan

    assert run(make_context, folder, spoil).status is Status.DIFFERENT


def test_without_reference_outputs_the_check_does_not_apply(make_context: MakeContext) -> None:
    assert reference.run(make_context()).status is Status.NOT_APPLICABLE


def test_a_folder_that_lists_no_sequence_is_not_green(make_context: MakeContext, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"sequences": {}}), encoding="utf-8")
    assert run(make_context, tmp_path, lambda variant, arrays: None).status is Status.SKIPPED


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest"])
def test_a_damaged_folder_is_a_clear_error(damage: str, folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "reference"
    shutil.copytree(folder, copied)
    file = copied / "prose_64.safetensors"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        file.unlink()
    else:
        (copied / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="reference outputs are damaged"):
        load_references(copied, "fp32_q")
