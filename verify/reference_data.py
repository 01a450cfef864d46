"""Reference outputs that lie beside a checkpoint, and how closely each array has to be met.

The tolerances are those that ``reference/manifest.json`` states in words. They exist because the reference
sums in another order, and with quantised caches a value next to a rounding boundary may land beyond it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from deepinfer.engine.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Bounds of one variant; None leaves an array out because the manifest keeps it for statistics.

    Attributes:
        logprob_mean: mean |difference| of the log-probabilities, nats.
        logprob_within: bound that ``logprob_share`` of the log-probabilities must keep.
        logprob_share: share of positions, 0 to 1.
        argmax_share: share of positions with the same most likely token.
        mean_nll: |difference| of the mean negative log-likelihood, nats.
        logsumexp_mean: mean |difference| of the log normalisers.
        logits_max: bound of each logit of the last eight rows.
        fragile_above: sensitivity above which a row has a bound of 5x its own sensitivity instead; None adds
            5x the largest sensitivity of the eight rows to the bound of all.
        draft_max: bound of each draft logit, to which 5x the block's sensitivity is added.
        draft_margin: lead of the best draft token above which it must be the same.
        draft_follows: judge draft tokens and their logits only as long as the block's earlier tokens agree.
        confidence_max: bound of each confidence logit.
    """

    logprob_mean: float
    argmax_share: float
    mean_nll: float
    logprob_within: float | None = None
    logprob_share: float = 1.0
    logsumexp_mean: float | None = None
    logits_max: float | None = None
    fragile_above: float | None = None
    draft_max: float | None = None
    draft_margin: float = 0.0
    draft_follows: bool = False
    confidence_max: float = 0.0


# Profile strict, cache round trips off: a different order of sums is all that is left.
EXACT_CACHES = Tolerances(
    logprob_mean=2e-4,
    logprob_within=2e-4,
    logprob_share=0.98,
    argmax_share=0.99,
    mean_nll=5e-4,
    logsumexp_mean=2e-4,
    logits_max=5e-4,
    fragile_above=1e-4,
    draft_max=5e-4,
    draft_margin=1e-2,
    confidence_max=2e-3,
)
# Profile strict, released caches: round-off can push a cached value over a rounding boundary.
RELEASED_CACHES = Tolerances(
    logprob_mean=8e-3,
    logprob_within=2e-2,
    logprob_share=0.90,
    argmax_share=0.98,
    mean_nll=5e-3,
    logsumexp_mean=8e-3,
    logits_max=2e-2,
    draft_max=5e-2,
    draft_margin=0.2,
    draft_follows=True,
    confidence_max=5e-2,
)
# Profile fast against the same fp32 arrays: bf16 activations round every intermediate value.
BF16_ACTIVATIONS = Tolerances(logprob_mean=0.12, argmax_share=0.93, mean_nll=3e-2)

_ARRAYS = (
    "token_logprobs",
    "argmax",
    "logsumexp",
    "logits_last8",
    "logits_sensitivity",
    "dspark_anchor_positions",
    "dspark_base_logits",
    "dspark_logits",
    "dspark_tokens",
    "dspark_token_margin",
    "dspark_confidence_raw",
    "dspark_sensitivity",
)


@dataclass(frozen=True, kw_only=True)
class ReferenceSequence:
    """Reference outputs of one token sequence in one variant.

    Attributes:
        name: name of the sequence.
        token_ids: the sequence, begin token first.
        mean_nll: mean negative log-likelihood, nats per token.
        arrays: arrays by the names and meanings that the manifest gives under ``kinds``, without the variant.
    """

    name: str
    token_ids: tuple[int, ...]
    mean_nll: float
    arrays: dict[str, npt.NDArray[Any]]


def load_references(folder: Path, variant: str) -> list[ReferenceSequence]:
    """All sequences of a folder of reference outputs.

    Raises:
        InputError: a file is missing, damaged, or lacks an array.
    """
    manifest_path = folder / "manifest.json"
    try:
        sequences = json.loads(manifest_path.read_text(encoding="utf-8"))["sequences"]
        return [_load(folder, name, variant, facts) for name, facts in sequences.items()]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(
            f"{folder}: reference outputs are damaged ({type(error).__name__}: {error}); restore the folder"
        ) from error


def _load(folder: Path, name: str, variant: str, facts: dict[str, Any]) -> ReferenceSequence:
    # Arrays are fetched by name: the file also holds bf16 statistics, a dtype numpy does not have.
    with safe_open(folder / f"{name}.safetensors", framework="numpy") as file:
        token_ids = file.get_tensor("input_ids")
        arrays = {array: np.asarray(file.get_tensor(f"{variant}.{array}")) for array in _ARRAYS}
    return ReferenceSequence(
        name=name,
        token_ids=tuple(int(token_id) for token_id in token_ids),
        mean_nll=float(facts[variant]["mean_nll"]),
        arrays=arrays,
    )
