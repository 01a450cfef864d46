"""Errors of the baseline store; each carries the exit code of product.md section 5.

This room imports nothing of ours, so it has its own base class; the command line treats it like a
``DeepInferError``. A message is one line: what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class BaselineError(Exception):
    """Base of every error that the store raises on purpose.

    Attributes:
        exit_code: process exit code the command line ends with (2 is *usage*).
    """

    exit_code: int = 2


class StoreError(BaselineError, OSError):
    """The system refused to read or write: full disk, read-only folder. Nothing is published."""

    def __str__(self) -> str:
        """The line as it was given; OSError would format its arguments."""
        return str(self.args[0])


class InvalidSampleError(BaselineError, ValueError):
    """A key, token ids or log-probabilities that cannot be locked."""


class UnlockedError(BaselineError, ValueError):
    """A baseline is missing, orphaned or damaged; exit code 3 (*unlocked*)."""

    exit_code = 3


class DamagedError(UnlockedError):
    """A file of the store is not what was published; names the file and the record.

    Attributes:
        record: the bad record, for example ``ledger/000000000003.jsonl line 2``.
    """

    def __init__(self, record: str, reason: str) -> None:
        """Build the line from the record and what is wrong with it."""
        super().__init__(f"{record}: {reason}; run 'deepinfer baseline fsck' and restore it from a copy")
        self.record = record
        self.reason = reason

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str]]:
        """Survive a process boundary."""
        return type(self), (self.record, self.reason)


class LockError(BaselineError, RuntimeError):
    """A lock timed out, cannot be taken or is held elsewhere; exit code 4 (*lock*). Nothing is published."""

    exit_code = 4


class LockLostError(LockError):
    """The lock was lost while held, or another writer holds a newer generation. Nothing is published."""


class NonFiniteLogprobError(BaselineError, ArithmeticError):
    """A scored log-probability is NaN or infinite; exit code 5 (*inconclusive*). Nothing is locked."""

    exit_code = 5
