"""What a check compares, as plain data: one question put to the engine in two ways.

Cases can be written down, sent to another machine, made smaller, and run again: every explanation, bisect and
repro pack starts from one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np

from deepinfer.engine.api import CacheFormat, Device, EngineConfig, PrefillMode, Profile
from deepinfer.engine.errors import InputError
from deepinfer.engine.speculation.options import Speculation, SpeculationPolicy

TokenIds = tuple[int, ...]
Setting = str | int | bool | None


class Ask(StrEnum):
    """What is asked of the engine."""

    SCORE = "score"
    GENERATE = "generate"
    RESCORE = "rescore"  # score the prompt together with what the left side generated
    DRAFT = "draft"
    STATE = "state"  # the cache bytes after a prefill


class Place(StrEnum):
    """Where a side runs."""

    HERE = "here"
    REOPENED = "reopened"
    PROCESS = "process"  # a process of its own, with another hash seed and address layout


class Need(StrEnum):
    """What must have happened on the right side, so that a case cannot pass by not doing its thing."""

    NOTHING = ""
    HIT = "hit"
    PREEMPTION = "preemption"
    DRAFTS = "drafts"
    AHEAD = "ahead"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One side of a case: the requests that run together, and how the engine is set.

    Attributes:
        ask: what is asked.
        prompts: token ids of the requests of one call, in order.
        target: which of them is looked at.
        before: prompts that the same engine has continued by one token before, one after the other.
        engine: fields of ``EngineConfig`` that differ from the configuration under test, by name.
        max_tokens: tokens to generate of each prompt.
        temperature: of every request; 0 is greedy.
        seeds: one per prompt, None to let the engine draw; empty gives every request seed 0.
        place: where it runs.
        unpacked: whether caches keep the decoded values beside the packed bytes, and are read from those.
    """

    ask: Ask
    prompts: tuple[TokenIds, ...]
    target: int = 0
    before: tuple[TokenIds, ...] = ()
    engine: tuple[tuple[str, Setting], ...] = ()
    max_tokens: int = 0
    temperature: float = 0.0
    seeds: tuple[int | None, ...] = ()
    place: Place = Place.HERE
    unpacked: bool = False

    @property
    def tokens(self) -> TokenIds:
        """The prompt that is looked at."""
        return self.prompts[self.target]

    def config(self, base: EngineConfig) -> EngineConfig:
        """``base`` with the changes of this side."""
        return replace(base, **as_fields(dict(self.engine)))

    def describe(self) -> str:
        """In words, without the token ids."""
        words = [f"{self.ask} of {len(self.tokens)} tokens"]
        if len(self.prompts) > 1:
            words.append(f"request {self.target} of {len(self.prompts)}")
        if self.before:
            words.append(f"after {len(self.before)} other prompts")
        if self.max_tokens:
            words.append(f"{self.max_tokens} tokens generated")
        words += [f"{name}={value}" for name, value in self.engine]
        words += [self.place] * (self.place is not Place.HERE) + ["caches unpacked"] * self.unpacked
        return ", ".join(words)


def _speculation(value: str | Mapping[str, Any]) -> Speculation:
    """From the text of a setting, or from the fields of a configuration that was written down."""
    if isinstance(value, str):
        return Speculation.from_text(value)
    return Speculation(policy=SpeculationPolicy(value["policy"]), num_drafts=value["num_drafts"])


def as_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``EngineConfig`` from plain values."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "prefill": PrefillMode,
        "profile": Profile,
        "cache_format": CacheFormat,
        "device": Device,
        "speculation": _speculation,
    }
    return {name: kinds[name](value) if name in kinds else value for name, value in record.items()}


def settings(**changes: Setting) -> tuple[tuple[str, Setting], ...]:
    """Engine settings of a trial; enums go in as their values."""
    plain = {n: value.value if isinstance(value, StrEnum) else value for n, value in changes.items()}
    return tuple(plain.items())


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two sides that must give the same bytes.

    Attributes:
        check: the check it belongs to.
        name: unique within the check.
        left, right: the two sides.
        workload: where the target's text comes from.
        need: what the right side must have gone through.
    """

    check: str
    name: str
    left: Trial
    right: Trial
    workload: str = ""
    need: Need = Need.NOTHING

    @property
    def case_id(self) -> str:
        """Name that ``deepinfer bisect`` takes."""
        return f"{self.check}/{self.name}"

    @property
    def token_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the target's ids as little-endian int32."""
        return hashlib.sha256(np.array(self.left.tokens, "<i4").tobytes()).hexdigest()[:16]

    def describe(self) -> str:
        """Both sides in words."""
        return f"{self.left.describe()} against {self.right.describe()}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def case_from_dict(record: Mapping[str, Any]) -> Case:
    """Read back what ``Case.to_dict`` wrote.

    Raises:
        InputError: it is no case.
    """
    try:
        return Case(
            check=str(record["check"]),
            name=str(record["name"]),
            left=trial_from_dict(record["left"]),
            right=trial_from_dict(record["right"]),
            workload=str(record.get("workload", "")),
            need=Need(record.get("need", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__} {error}"
        raise InputError(f"not a case of verify ({reason}); write it anew with --pack") from None


def trial_from_dict(record: Mapping[str, Any]) -> Trial:
    """Read back one side."""
    known = {item.name for item in fields(Trial)} | {item.name for item in fields(EngineConfig)}
    unknown = [name for name in record if name not in known]
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    return Trial(
        ask=Ask(record["ask"]),
        prompts=_prompts(record["prompts"]),
        target=int(record.get("target", 0)),
        before=_prompts(record.get("before", ())),
        engine=tuple((str(name), value) for name, value in record.get("engine", ())),
        max_tokens=int(record.get("max_tokens", 0)),
        temperature=float(record.get("temperature", 0.0)),
        seeds=tuple(None if seed is None else int(seed) for seed in record.get("seeds", ())),
        place=Place(record.get("place", Place.HERE)),
        unpacked=bool(record.get("unpacked", False)),
    )


def _prompts(rows: Any) -> tuple[TokenIds, ...]:
    return tuple(tuple(int(token) for token in row) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one side said about its target.

    Attributes:
        token_ids: int32, the emitted tokens, or the scored sequence.
        positions: int64 [R], absolute position that each logits row predicts, ascending.
        logits: float32 [R, V].
        by_position: further arrays with one element per row of ``positions``.
        whole: further arrays without positions.
        num_hit_tokens, num_preemptions, num_accepted, num_ahead: what generation went through.
        failure: why the engine refused it, else None.
    """

    token_ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    by_position: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    whole: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_accepted: int = 0
    num_ahead: int = 0
    failure: str | None = None


def refused(reason: str) -> Answer:
    """The answer of an engine that did not run the target."""
    none = np.zeros(0, np.int64)
    return Answer(
        token_ids=none.astype(np.int32),
        positions=none,
        logits=np.zeros((0, 0), np.float32),
        failure=reason,
    )
