"""What a seeded fault is, and what must be said about it."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.verify.faults.edit import Edit


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that a check must find.

    Attributes:
        name: short name.
        about: the kind of mistake it stands for, in a few words.
        edits: how it is made.
        check: the check that must go red; empty for a fault that none can find, and ``about`` says why.
        ops: ops that bisect may name; empty where no case exists that could be bisected.
        tensor: what bisect must blame: the beginning of the tensor's name.
    """

    name: str
    about: str
    edits: tuple[Edit, ...]
    check: str
    ops: tuple[str, ...] = ()
    tensor: str = ""
