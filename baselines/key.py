"""What a baseline is locked for: sample x platform x workload x model x profile."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Self

from deepinfer.baselines.errors import InvalidSampleError

_NAME = re.compile(r"[^\s/~]+\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_SHORT = 8


def digest_of_name(name: str) -> str:
    """Hex sha256 that stands for something known by its name only."""
    return hashlib.sha256(b"name:" + name.encode("utf-8")).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What all samples of one run share.

    Model and workload are identified by digest; their names are for the eye and take no part in equality, so
    a renamed folder is the same model.

    Attributes:
        platform: what the bits may depend on: ``portable``, ``cpu-amd-avx2``, ``cuda-sm90-h200``.
        profile: arithmetic, ``strict`` or ``fast``; another engine names its own.
        model_digest: hex sha256 of the checkpoint.
        workload_digest: hex sha256 of documents, tokenizer and scoring policy.
        model_name: readable name of the model.
        workload_name: readable name of texts and policy, for example ``prose.document.256``.
    """

    platform: str
    profile: str
    model_digest: str
    workload_digest: str
    model_name: str = field(compare=False)
    workload_name: str = field(compare=False)

    def __post_init__(self) -> None:
        """Refuse names that could not be read back from a key's text."""
        for what in ("platform", "profile", "model_name", "workload_name"):
            value = getattr(self, what)
            if not _NAME.match(value) or not value.isprintable():
                raise InvalidSampleError(
                    f"{what} {value!r}: a name is one word without '/' and '~'; choose another"
                )
        for what in ("model_digest", "workload_digest"):
            if not _DIGEST.match(getattr(self, what)):
                raise InvalidSampleError(f"{what} {getattr(self, what)!r}: give a sha256 as 64 hex digits")

    def __str__(self) -> str:
        """``platform/profile/model~digest/workload~digest``."""
        model = f"{self.model_name}~{self.model_digest[:_SHORT]}"
        return f"{self.platform}/{self.profile}/{model}/{self.workload_name}~{self.workload_digest[:_SHORT]}"

    def __hash__(self) -> int:
        """Of one digest only: a string keeps its hash, and a store looks scopes up for every sample."""
        return hash(self.workload_digest)

    @property
    def family(self) -> tuple[str, str, str, str]:
        """What stays the same when a text or a checkpoint changes; orphans are looked for within it."""
        return self.platform, self.profile, self.model_name, self.workload_name

    def to_dict(self) -> dict[str, str]:
        """JSON values."""
        return {
            "platform": self.platform,
            "profile": self.profile,
            "model": self.model_name,
            "model_digest": self.model_digest,
            "workload": self.workload_name,
            "workload_digest": self.workload_digest,
        }

    @classmethod
    def from_dict(cls, members: dict[str, str]) -> Self:
        """Read what `to_dict` wrote; a KeyError or InvalidSampleError when it is not that."""
        return cls(
            platform=members["platform"],
            profile=members["profile"],
            model_name=members["model"],
            model_digest=members["model_digest"],
            workload_name=members["workload"],
            workload_digest=members["workload_digest"],
        )


@dataclass(frozen=True, slots=True)
class Key:
    """One locked thing.

    Attributes:
        scope: the run it belongs to.
        sample: the sample's id, any printable text.
    """

    scope: Scope
    sample: str

    def __post_init__(self) -> None:
        """Refuse ids that would break a line."""
        if not self.sample or not self.sample.isprintable():
            raise InvalidSampleError(f"sample id {self.sample!r}: give printable text on one line")

    def __str__(self) -> str:
        """``platform/profile/model~digest/workload~digest/sample``: what globs match and commands take."""
        return f"{self.scope}/{self.sample}"

    @classmethod
    def of(
        cls,
        sample: str,
        *,
        workload: str,
        model: str,
        platform: str,
        profile: str = "default",
        workload_digest: str | None = None,
        model_digest: str | None = None,
    ) -> Self:
        """A key from names; where a digest is not given, the name alone identifies."""
        scope = Scope(
            platform=platform,
            profile=profile,
            model_name=model,
            model_digest=model_digest or digest_of_name(model),
            workload_name=workload,
            workload_digest=workload_digest or digest_of_name(workload),
        )
        return cls(scope, sample)
