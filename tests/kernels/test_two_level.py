"""Two-level selection of index entries: the choice of a stable sort whatever keys tie, in memory that does
not grow with the context.
"""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from beside import HELPERS, Beside
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
BESIDE = ["interpreted_selection.py"]
MIB = 1 << 20


def test_choices_of_unkind_keys_are_those_of_a_stable_sort(beside: Beside) -> None:
    found: dict[str, int] = beside.answer("interpreted_selection.py")
    assert found["wrong"] == found["strict"] == 0
    assert found["control"] > 0, "no tie decides anything"


@pytest.mark.slow
def test_all_shapes_of_unkind_keys() -> None:
    script = [sys.executable, str(HELPERS / "interpreted_selection.py"), "all"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == 0
    assert found["control"] > 0


def by_two_levels(keys: torch.Tensor, top: int, block: int, last: bool) -> torch.Tensor:
    """Entries of each row through its ``top`` best blocks, those of higher index first if ``last``."""
    largest = keys.view(len(keys), -1, block).amax(2)
    number = torch.arange(largest.shape[1])
    order = largest * 1000 + (number if last else -number)
    blocks = order.topk(top).indices.sort().values
    entries = (blocks[:, :, None] * block + torch.arange(block)).flatten(1)
    best = keys.gather(1, entries).sort(descending=True, stable=True).indices[:, :top]
    return entries.gather(1, best).sort().values


def test_no_entry_is_lost_where_blocks_tie() -> None:
    """What the docstring of ``select_blocks`` shows, on 4,000 rows in which nearly everything ties."""
    keys = torch.randint(0, 3, (4000, 64), generator=torch.Generator().manual_seed(5))
    keys[::4] = 1
    exact = keys.sort(descending=True, stable=True).indices
    for top in (1, 3, 7):
        wanted = exact[:, :top].sort().values
        assert torch.equal(by_two_levels(keys, top, 4, last=False), wanted)
        assert not torch.equal(by_two_levels(keys, top, 4, last=True), wanted), "ties decide nothing"


class Held(TorchDispatchMode):
    """Bytes of all tensors made without contents that are alive at once, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it; count what is alive."""
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.empty:
            self._alive.append(weakref.ref(out))
            alive = [one for ref in self._alive if (one := ref()) is not None]
            self._alive = [weakref.ref(one) for one in alive]
            self.peak = max(self.peak, sum(one.nbytes for one in alive))
        return out


class Unscored:
    """Scores of the right shapes."""

    per_group = 128

    def scan(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        part: slice,
        first: int,
        counts: torch.Tensor,
        length: int,
        block_size: int,
        blocks: torch.Tensor | None = None,
        keys: bool = True,
        best: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``two_level.Scores``."""
        shape = len(counts), length if keys else 0
        largest = torch.empty(len(counts), length // block_size if best else 0, dtype=torch.int16)
        return torch.empty(shape, dtype=torch.int16), largest


def test_scratch_does_not_grow_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.kernels.gpu import select16, select_best, select_blocks
    from deepinfer.kernels.gpu.two_level import Limits, index_select

    for module in (select16, select_best, select_blocks):
        monkeypatch.setattr(module, "launch", lambda *_, **__: None)

    def peak(rows: int, longest: int, limits: Limits) -> int:
        q, w, counts = torch.zeros(rows, 1, 1), torch.zeros(rows, 1), torch.zeros(rows, dtype=torch.int32)
        with Held() as held:
            index_select(q, w, Unscored(), counts, longest, 512, 2048, 8, limits)
        return held.peak

    limits = Limits()
    assert peak(64, 1 << 20, limits) == peak(64, 1 << 18, limits) < 6 * MIB
    answer = 4096 * (512 + 2048) * 4
    assert peak(4096, 1 << 20, limits) <= limits.scratch + answer
    assert peak(64, 1 << 17, Limits(entries=1 << 17)) > 16 * MIB, "all keys at once would not be seen"
