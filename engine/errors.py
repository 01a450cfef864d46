"""Errors a user can cause or meet; each carries the exit code of product.md section 5.

A message is one line: what is wrong, where, and what to do about it. The command line prints it as it stands.
"""

from __future__ import annotations


class DeepInferError(Exception):
    """Base of every error this package raises on purpose.

    Attributes:
        exit_code: process exit code the command line ends with (2 is *usage*, 5 is *inconclusive*).
    """

    exit_code: int = 2


class ConfigError(DeepInferError, ValueError):
    """A model or engine configuration contradicts itself or holds an impossible value."""


class CheckpointError(DeepInferError, ValueError):
    """A checkpoint is unreadable, or its tensors are not those that its configuration asks for."""


class CapacityError(DeepInferError, MemoryError):
    """The model does not fit this machine; raised before anything is allocated."""


class InputError(DeepInferError, ValueError):
    """Text, token ids or a request file that cannot be used; names the sample and the position."""


class RunError(DeepInferError, ValueError):
    """A run folder that is damaged, of another configuration, or in use."""


class NonFiniteError(DeepInferError, ArithmeticError):
    """Weights or logits hold NaN or infinity, so that no comparison means anything."""

    exit_code = 5
