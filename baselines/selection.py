"""Which keys a command is about: globs on sample, workload, platform and model, or keys as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from deepinfer.baselines.errors import BaselineError
from deepinfer.baselines.key import Key


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Globs that all have to match; the default matches everything.

    Attributes:
        sample: glob on the sample's id.
        workload: glob on the workload's name, or on the part of it before the first dot.
        platform: glob on the platform.
        model: glob on the model's name.
    """

    sample: str = "*"
    workload: str = "*"
    platform: str = "*"
    model: str = "*"

    def matches(self, key: Key) -> bool:
        """Whether a key is selected."""
        scope = key.scope
        return (
            _matches(key.sample, self.sample)
            and any(
                _matches(name, self.workload)
                for name in (scope.workload_name, scope.workload_name.partition(".")[0])
            )
            and _matches(scope.platform, self.platform)
            and _matches(scope.model_name, self.model)
        )


def find_keys(keys: Iterable[Key], texts: Sequence[str]) -> list[Key]:
    """The keys that the user named: each text is a whole key, a sample id, or a glob on either.

    Raises:
        BaselineError: a text that names no key.
    """
    known = list(keys)
    found: dict[Key, None] = {}
    for text in texts:
        exact = [key for key in known if text in (str(key), key.sample)]
        matching = exact or [k for k in known if fnmatchcase(str(k), text) or fnmatchcase(k.sample, text)]
        if not matching:
            raise BaselineError(f"no such key here: {text!r}; 'deepinfer baseline status' lists them")
        found.update(dict.fromkeys(matching))
    return list(found)


def shard_of(index: int, shard: tuple[int, int]) -> bool:
    """Whether the ``index``-th sample belongs to shard ``(i, K)``, i from 1 to K."""
    return index % shard[1] == shard[0] - 1


def _matches(value: str, glob: str) -> bool:
    return value == glob or fnmatchcase(value, glob)
