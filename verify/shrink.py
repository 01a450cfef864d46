"""Makes a failing case smaller until nothing can be taken away: fewest requests, tokens and settings.

The result is 1-minimal: without any one of its requests, tokens, settings or generated tokens it passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from deepinfer.verify.case import Case, TokenIds, Trial

Fails = Callable[[Case], bool]
_MEANING = frozenset({"profile", "prefill", "keep", "cache_format", "device", "backend"})
MAX_RUNS = 1500
"""Cases tried at most; a shrink that needs more stops where it is and says so."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """A smaller case that still fails.

    Attributes:
        case: the case.
        num_runs: cases tried.
        is_minimal: whether every single removal was tried on it and passed.
    """

    case: Case
    num_runs: int
    is_minimal: bool


def shrink(case: Case, fails: Fails, max_runs: int = MAX_RUNS) -> Shrunk:
    """Shrink ``case``, of which ``fails`` is true; big steps first, then single ones until none succeeds."""
    num_runs = 0

    def still_fails(smaller: Case) -> bool:
        nonlocal num_runs
        num_runs += 1
        return num_runs <= max_runs and fails(smaller)

    share = 1.0
    while True:
        smaller = _pass(case, still_fails, share)
        if num_runs > max_runs:
            return Shrunk(case=smaller, num_runs=max_runs, is_minimal=False)
        if smaller == case and share == 0.0:
            return Shrunk(case=case, num_runs=num_runs, is_minimal=True)
        # after a pass of single steps that removed something, single steps again: one may enable another
        share = share / 2 if share > 0.05 else 0.0
        case = smaller


def _pass(case: Case, fails: Fails, share: float) -> Case:
    """Try every removal of about ``share`` of each part, keeping those after which the case still fails."""
    for part in _parts(case):
        high = part.count(case)
        step = max(1, int(high * share))
        while high > 0:  # from the end: a prefix of the text is the most natural remainder
            low = max(0, high - step)
            smaller = part.without(case, low, high)
            if smaller is not None and smaller != case and fails(smaller):
                case = smaller
            elif part.is_number:
                break  # taking the same amount away again would ask the same question
            high = low
    return case


@dataclass(frozen=True)
class _Part:
    """Something countable in a case.

    Attributes:
        count: how many there are.
        without: the case without items a to b, None if it cannot be.
        is_number: whether the items are the units of a number, of which any b - a are the same.
    """

    count: Callable[[Case], int]
    without: Callable[[Case, int, int], Case | None]
    is_number: bool = False


def _parts(case: Case) -> Iterator[_Part]:
    for side in ("left", "right"):
        yield _neighbours(side)
        yield _prompts_before(side)
        yield _settings(side)
    yield _Part(lambda c: max(c.left.max_tokens, c.right.max_tokens) - 1, _fewer_tokens, is_number=True)
    yield _Part(lambda c: len(c.left.tokens), _shorter_target)
    for side in ("left", "right"):
        trial: Trial = getattr(case, side)
        for index in range(len(trial.prompts)):
            if index != trial.target:
                yield _neighbour_tokens(side, index)
        for index in range(len(trial.before)):
            yield _tokens_before(side, index)
    for name in ("max_chunk_tokens", "max_batch_tokens", "num_threads", "num_cache_blocks"):
        yield _smaller_setting(name)


def _neighbours(side: str) -> _Part:
    def without(case: Case, low: int, high: int) -> Case | None:
        trial: Trial = getattr(case, side)
        others = [i for i in range(len(trial.prompts)) if i != trial.target]
        gone = set(others[low:high])
        kept = [i for i in range(len(trial.prompts)) if i not in gone]
        smaller = replace(
            trial,
            prompts=tuple(trial.prompts[i] for i in kept),
            target=kept.index(trial.target),
            seeds=tuple(trial.seeds[i] for i in kept) if trial.seeds else (),
        )
        return _with_side(case, side, smaller)

    return _Part(lambda case: len(getattr(case, side).prompts) - 1, without)


def _prompts_before(side: str) -> _Part:
    def without(case: Case, low: int, high: int) -> Case | None:
        before = getattr(case, side).before
        return _with_side(case, side, replace(getattr(case, side), before=before[:low] + before[high:]))

    return _Part(lambda case: len(getattr(case, side).before), without)


def _settings(side: str) -> _Part:
    """Settings that no bit may depend on; without one of the others a side would answer another question."""

    def free(case: Case) -> list[str]:
        return [name for name, _ in getattr(case, side).engine if name not in _MEANING]

    def without(case: Case, low: int, high: int) -> Case | None:
        gone = set(free(case)[low:high])
        trial: Trial = getattr(case, side)
        kept = tuple((name, value) for name, value in trial.engine if name not in gone)
        return _with_side(case, side, replace(trial, engine=kept))

    return _Part(lambda case: len(free(case)), without)


def _fewer_tokens(case: Case, low: int, high: int) -> Case | None:
    def side(trial: Trial) -> Trial:
        fewer = max(1, trial.max_tokens - (high - low)) if trial.max_tokens else 0
        return replace(trial, max_tokens=fewer)

    return replace(case, left=side(case.left), right=side(case.right))


def _shorter_target(case: Case, low: int, high: int) -> Case | None:
    ids = case.left.tokens
    if high - low >= len(ids) or case.right.tokens != ids:
        return None

    def side(trial: Trial) -> Trial:
        prompts = list(trial.prompts)
        prompts[trial.target] = ids[:low] + ids[high:]
        # a prompt that warmed the cache loses the same tokens as far as it had them
        before = tuple(b[:low] + b[high:] if b[:high] == ids[:high] else b for b in trial.before)
        return replace(trial, prompts=tuple(prompts), before=before)

    smaller = replace(case, left=side(case.left), right=side(case.right))
    for trial in (smaller.left, smaller.right):
        if () in trial.before or _is_ambiguous(trial):
            return None
    return smaller


def _neighbour_tokens(side: str, index: int) -> _Part:
    def count(case: Case) -> int:
        prompts = getattr(case, side).prompts
        return len(prompts[index]) if index < len(prompts) else 0

    def without(case: Case, low: int, high: int) -> Case | None:
        trial: Trial = getattr(case, side)
        prompts = list(trial.prompts)
        if index == trial.target or high - low >= len(prompts[index]):
            return None
        prompts[index] = prompts[index][:low] + prompts[index][high:]
        smaller = replace(trial, prompts=tuple(prompts))
        return None if _is_ambiguous(smaller) else _with_side(case, side, smaller)

    return _Part(count, without)


def _tokens_before(side: str, index: int) -> _Part:
    def count(case: Case) -> int:
        before = getattr(case, side).before
        return len(before[index]) if index < len(before) else 0

    def without(case: Case, low: int, high: int) -> Case | None:
        trial: Trial = getattr(case, side)
        prompts = list(trial.before)
        shorter: TokenIds = prompts[index][:low] + prompts[index][high:]
        if not shorter:
            return None
        prompts[index] = shorter
        return _with_side(case, side, replace(trial, before=tuple(prompts)))

    return _Part(count, without)


def _smaller_setting(name: str) -> _Part:
    """Lower a number of the right side, as far as 1."""

    def value(case: Case) -> int:
        found = dict(case.right.engine).get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else 0

    def without(case: Case, low: int, high: int) -> Case | None:
        lower = max(1, value(case) - (high - low))
        engine = tuple((n, lower if n == name else v) for n, v in case.right.engine)
        return _with_side(case, "right", replace(case.right, engine=engine))

    return _Part(lambda case: max(0, value(case) - 1), without, is_number=True)


def _with_side(case: Case, side: str, trial: Trial) -> Case:
    return replace(case, left=trial) if side == "left" else replace(case, right=trial)


def _is_ambiguous(trial: Trial) -> bool:
    """Whether another request is the target's twin, which a trace could not tell from it."""
    return trial.prompts.count(trial.tokens) > 1
