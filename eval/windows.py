"""Window policies: which stretches of a document the model sees, and which of their tokens are scored.

Positions are those of the document's ids with the begin token at position 0. Each policy is one published
convention (evaluation.md section 1.2); figures of different policies are different quantities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from deepinfer.engine.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Window:
    """One stretch of a document that is run as one request.

    Attributes:
        window_id: number of the window within its document and policy.
        start: first position of the stretch.
        end: position after the last.
        first_scored: first position that is scored; every later one up to ``end`` is scored too.
        begin_replaces_first: the begin token stands in the place of the id at ``start``.
    """

    window_id: int
    start: int
    end: int
    first_scored: int
    begin_replaces_first: bool = False


class WindowPolicy(ABC):
    """How a document is cut. ``label`` names the convention with its numbers, and every figure carries it."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Canonical name, which :func:`parse_policy` reads back."""

    @property
    @abstractmethod
    def context(self) -> int | None:
        """Most ids of one window; None when the document decides."""

    @abstractmethod
    def windows(self, num_ids: int) -> list[Window]:
        """The windows of a document of ``num_ids`` ids that score at least one token, in order."""


@dataclass(frozen=True)
class Disjoint(WindowPolicy):
    """Windows side by side; nothing is carried over, so the first token of a later window is not scored."""

    size: int

    @property
    def label(self) -> str:
        """``disjoint:N``."""
        return f"disjoint:{self.size}"

    @property
    def context(self) -> int:
        """N."""
        return self.size

    def windows(self, num_ids: int) -> list[Window]:
        """Every N ids one window; a last window of a single id scores nothing and is left out."""
        starts = range(0, num_ids - 1, self.size)
        return [
            Window(window_id=index, start=start, end=min(start + self.size, num_ids), first_scored=start + 1)
            for index, start in enumerate(starts)
        ]


@dataclass(frozen=True)
class Strided(WindowPolicy):
    """Windows that start every ``stride`` ids; a token is scored once, in the first window that reaches it.

    Every token but those of the first window has at least ``size - stride`` ids before it.
    """

    size: int
    stride: int

    @property
    def label(self) -> str:
        """``strided:N:S``."""
        return f"strided:{self.size}:{self.stride}"

    @property
    def context(self) -> int:
        """N."""
        return self.size

    def windows(self, num_ids: int) -> list[Window]:
        """Windows until one reaches the end of the document."""
        found: list[Window] = []
        next_scored = 1
        while next_scored < num_ids:
            start = len(found) * self.stride
            end = min(start + self.size, num_ids)
            found.append(Window(window_id=len(found), start=start, end=end, first_scored=next_scored))
            next_scored = end
        return found


@dataclass(frozen=True)
class HalfWindow(WindowPolicy):
    """llama.cpp's perplexity: disjoint chunks whose first id is replaced by the begin token.

    Only positions after the middle (``size // 2 + 1`` and later) are scored; a tail shorter than a chunk is
    dropped.
    """

    size: int

    @property
    def label(self) -> str:
        """``half:N``."""
        return f"half:{self.size}"

    @property
    def context(self) -> int:
        """N."""
        return self.size

    def windows(self, num_ids: int) -> list[Window]:
        """The whole chunks of the document; none when it is shorter than one."""
        return [
            Window(
                window_id=index,
                start=index * self.size,
                end=(index + 1) * self.size,
                first_scored=index * self.size + self.size // 2 + 1,
                begin_replaces_first=True,
            )
            for index in range(num_ids // self.size)
        ]


@dataclass(frozen=True)
class WholeDocument(WindowPolicy):
    """The document in one window: every token is scored with all of the text before it."""

    @property
    def label(self) -> str:
        """``document``."""
        return "document"

    @property
    def context(self) -> None:
        """The document decides."""
        return None

    def windows(self, num_ids: int) -> list[Window]:
        """One window, or none for a lone begin token."""
        return [Window(window_id=0, start=0, end=num_ids, first_scored=1)] if num_ids > 1 else []


DEFAULT_CONTEXT = 512
_FORMS = "disjoint[:N], strided[:N:S], half[:N] or document"


def parse_policy(text: str, context: int | None = None, stride: int | None = None) -> WindowPolicy:
    """The policy a user named.

    Args:
        text: ``disjoint[:N]``, ``strided[:N:S]``, ``half[:N]`` or ``document``.
        context: N where the text gives none; :data:`DEFAULT_CONTEXT` when None.
        stride: S where the text gives none; half of N when None.

    Raises:
        InputError: unknown policy, or numbers under which some token would be scored never or twice.
    """
    name, *numbers = text.split(":")
    wanted = {"disjoint": 1, "strided": 2, "half": 1, "document": 0}.get(name)
    if (
        wanted is None
        or len(numbers) not in (0, wanted)
        or not all(n.isascii() and n.isdigit() for n in numbers)
    ):
        raise InputError(f"unknown window policy {text!r}; give {_FORMS}")
    if name == "document":
        return WholeDocument()
    size = int(numbers[0]) if numbers else DEFAULT_CONTEXT if context is None else context
    if size < 4:
        raise InputError(f"window policy {text!r}: a context of {size} ids is too short; give at least 4")
    if name == "disjoint":
        return Disjoint(size)
    if name == "half":
        return HalfWindow(size)
    step = int(numbers[1]) if numbers else size // 2 if stride is None else stride
    if not 1 <= step < size:
        raise InputError(
            f"window policy {text!r}: stride {step} must be at least 1 and below the context {size}, "
            "so that every scored token has something before it"
        )
    return Strided(size, step)


def choose_policies(
    texts: tuple[str, ...], context: int | None, stride: int | None
) -> tuple[WindowPolicy, ...]:
    """The policies of a run; ``strided`` when none is named.

    Raises:
        InputError: as :func:`parse_policy`; or the same policy twice; or a stride that no policy reads.
    """
    policies = tuple(parse_policy(text, context, stride) for text in texts or ("strided",))
    labels = [policy.label for policy in policies]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"window policy {label!r} is given twice; name it once")
    if stride is not None and not any(text == "strided" for text in texts or ("strided",)):
        raise InputError(
            "a stride is given but no policy reads it; add the policy 'strided' or leave the stride out"
        )
    if context is not None and not any(
        text in ("strided", "disjoint", "half") for text in texts or ("strided",)
    ):
        raise InputError(
            "a context is given but no policy reads it; name one without its own number, or leave it out"
        )
    return policies
