"""Names the first layer, op, row and tensor in which two traces differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deepinfer.engine.op_trace import DraftedRow, Label, Tracer

Digests = dict[tuple[Label, int], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Digests of one side.

    Attributes:
        ranks: every label with its place in the order of execution within its layer.
        digests: (label, position) -> the distinct digests seen there, sorted; more than one means that the
            same thing was computed twice with different bits. Rows of drafts that were wrong are left out.
        drafted: the rows that were computed from drafts.
    """

    ranks: Mapping[Label, int]
    digests: Digests
    drafted: tuple[DraftedRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where two traces part.

    Attributes:
        layer: backbone layer; ``num_layers`` stands for head and sampling.
        site: function that calls the op.
        op: the op, or the name of a tensor that no op made.
        number: how many calls of this op by this function in this layer came before.
        tensor: what differs: ``out`` blames the op, ``in NAME`` what was read from a cache or handed over.
        position: absolute position of the row.
        num_differing: digests that differ in all.
        num_compared: digests that both sides have.
    """

    layer: int
    site: str
    op: str
    number: int
    tensor: str
    position: int
    num_differing: int
    num_compared: int

    def describe(self) -> str:
        """One line."""
        what = (
            f"output of {self.op}"
            if self.tensor.startswith("out")
            else f"input {self.tensor[3:]} of {self.op}"
        )
        call = f", call {self.number + 1}" if self.number else ""
        return (
            f"layer {self.layer}, {what} in {self.site}{call}, row of position {self.position} "
            f"({self.num_differing:,} of {self.num_compared:,} digests differ after it)"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def trace_of(tracer: Tracer, token_ids: Sequence[int] = ()) -> Trace:
    """What a tracer recorded of the sequence that came to be ``token_ids``."""
    labels, drafted = tuple(tracer.labels), tracer.drafted(token_ids)
    wrong = {(row.step, row.position) for row in drafted if not row.is_accepted}
    digests = {
        (labels[number], position): tuple(sorted(stands))
        for (number, position), found in tracer.digests.items()
        if (stands := {digest for step, digest in found if (step, position) not in wrong})
    }
    return Trace(ranks=dict(tracer.ranks), digests=digests, drafted=tuple(drafted))


def first_difference(left: Trace, right: Trace) -> Location | None:
    """The first row that differs, and in it the first op; None if all that both sides have is equal.

    A row depends on rows at its own and earlier positions, in earlier ops, so whatever stands first in this
    order had equal inputs: it is where the difference began.
    """
    order = execution_order(left.ranks, right.ranks)
    shared = left.digests.keys() & right.digests.keys()
    differing = [key for key in shared if left.digests[key] != right.digests[key]]
    if not differing:
        return None
    label, position = min(differing, key=lambda key: (key[1], order[key[0]]))
    return Location(
        layer=label.layer,
        site=label.site,
        op=label.op,
        number=label.number,
        tensor=label.tensor,
        position=position,
        num_differing=len(differing),
        num_compared=len(shared),
    )


def execution_order(left: Mapping[Label, int], right: Mapping[Label, int]) -> dict[Label, tuple[int, int]]:
    """Labels of both sides in the order of execution: by layer, then by the later of their places in it."""
    return {
        label: (label.layer, max(left.get(label, 0), right.get(label, 0)))
        for label in left.keys() | right.keys()
    }
