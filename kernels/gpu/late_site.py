"""A site whose mixes are still being made while its sublayer runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from deepinfer.kernels.operands import SiteInput

Mixes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""``pre`` [T, S], ``post`` [T, S] and ``comb`` [T, S, S]."""


class LateSiteInput(SiteInput):
    """See ``SiteInput``; whoever first asks for a mix waits for all of them."""

    def __init__(self, x: torch.Tensor, mixes: Callable[[], Mixes]) -> None:
        """``x`` is there, ``mixes`` waits for the rest."""
        vars(self).update(x=x, _wait=mixes)  # a frozen dataclass has no other way in

    @cached_property
    def _mixes(self) -> Mixes:
        found: Mixes = vars(self)["_wait"]()
        return found

    @property
    def pre(self) -> torch.Tensor:
        """See ``SiteInput``."""
        return self._mixes[0]

    @property
    def post(self) -> torch.Tensor:
        """See ``SiteInput``."""
        return self._mixes[1]

    @property
    def comb(self) -> torch.Tensor:
        """See ``SiteInput``."""
        return self._mixes[2]
