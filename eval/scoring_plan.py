"""Which texts are locked, and how they are scored: the workload part of a baseline's key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deepinfer.baselines.key import Key, Scope
from deepinfer.engine.api import CacheFormat, EngineConfig, Int32Array, PrefillMode
from deepinfer.engine.errors import InputError
from deepinfer.eval.provenance import platform_of
from deepinfer.eval.publish import canonical_json, digest_of
from deepinfer.eval.samples import encode_workloads
from deepinfer.eval.tokenizer import TextTokenizer
from deepinfer.eval.windows import WindowPolicy, parse_policy
from deepinfer.eval.workload import load_workload


class ScorerFacts(Protocol):
    """What a key says about an engine; every ``Scorer`` has it."""

    @property
    def config(self) -> EngineConfig:
        """How the model runs."""

    @property
    def keep(self) -> int | None:
        """Trailing rows that truncated prefill keeps; None in mode off."""

    @property
    def model_dir(self) -> Path:
        """Checkpoint folder."""

    @property
    def checkpoint_digest(self) -> str:
        """Hex sha256 of the checkpoint."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def bos_token_id(self) -> int:
        """The id that starts a text."""

    @property
    def max_context(self) -> int:
        """Most ids one request may hold."""


@dataclass(frozen=True, kw_only=True)
class ScoringPlan:
    """One workload and how it is scored.

    Attributes:
        workload: bundled name, ``FILE.jsonl`` or ``FILE.txt``.
        policy: one window policy, as ``windows.parse_policy`` reads it.
        max_tokens: score only the first tokens of each text; None is all of it.
    """

    workload: str
    policy: str = "document"
    max_tokens: int | None = None


BUNDLED_PLANS = (
    *(ScoringPlan(workload=name, max_tokens=256) for name in ("prose", "technical", "code", "unicode")),
    ScoringPlan(workload="longctx", max_tokens=1024),
)
"""What the bundled baselines hold: enough of each text to cross windows, tiles and compression groups."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedSample:
    """One sample to score for a baseline.

    Attributes:
        key: its key.
        token_ids: [S] int32, begin token first.
        policy: how it is cut.
    """

    key: Key
    token_ids: Int32Array
    policy: WindowPolicy


def plan_samples(facts: ScorerFacts, plans: tuple[ScoringPlan, ...]) -> list[PlannedSample]:
    """Every sample of the plans with its key, in the order of the plans and their texts.

    Raises:
        InputError: a workload, a policy or a text that cannot be used, or a plan given twice.
    """
    tokenizer = TextTokenizer(facts.model_dir, facts.bos_token_id, facts.vocab_size)
    planned: list[PlannedSample] = []
    seen: set[Scope] = set()
    for plan in plans:
        policy = parse_policy(plan.policy)
        workload = load_workload(plan.workload)
        scope = _scope(facts, plan, policy, workload.name, workload.digest, tokenizer.digest)
        if scope in seen:
            raise InputError(f"workload {plan.workload!r} is planned twice in the same way; name it once")
        seen.add(scope)
        for sample in encode_workloads([workload], tokenizer, plan.max_tokens):
            num_ids = len(sample.token_ids)
            if (policy.context or num_ids) > facts.max_context:
                raise InputError(
                    f"sample {sample.sample_id!r} of {plan.workload!r}: policy {policy.label} needs "
                    f"{policy.context or num_ids} ids and the model takes {facts.max_context}; "
                    "give a smaller policy or max_tokens"
                )
            if num_ids > 1:  # a lone begin token has nothing to lock
                key = Key(scope, sample.sample_id)
                planned.append(PlannedSample(key=key, token_ids=sample.token_ids, policy=policy))
    return planned


def _scope(
    facts: ScorerFacts,
    plan: ScoringPlan,
    policy: WindowPolicy,
    workload_name: str,
    workload_digest: str,
    tokenizer_digest: str,
) -> Scope:
    config = facts.config
    question = {
        "documents": workload_digest,
        "tokenizer": tokenizer_digest,
        "policy": policy.label,
        "max_tokens": plan.max_tokens,
        "begin_token": "once, before each text",
        "prefill": config.prefill.value,
        "keep": facts.keep,
        "cache_format": config.cache_format.value,
    }
    parts = [workload_name, policy.label.replace(":", "-")]
    if plan.max_tokens is not None:
        parts.append(str(plan.max_tokens))
    if config.prefill is not PrefillMode.OFF:
        parts.append(f"{config.prefill.value}-{facts.keep}")
    if config.cache_format is not CacheFormat.RELEASED:
        parts.append(f"caches-{config.cache_format.value}")
    return Scope(
        platform=platform_of(config),
        profile=config.profile.value,
        model_name=_one_word(facts.model_dir.resolve().name),
        model_digest=facts.checkpoint_digest,
        workload_name=_one_word(".".join(parts)),
        workload_digest=digest_of(canonical_json(question)),
    )


def _one_word(text: str) -> str:
    return re.sub(r"[\s/~]+", "-", text) or "unnamed"
