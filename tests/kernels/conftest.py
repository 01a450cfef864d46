"""Kernel sets and random activations of the kernel tests."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from beside import Beside

from deepinfer.kernels.cpu.backend import CpuOps
from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.interface import Ops

Draw = Callable[..., torch.Tensor]
BESIDE = pytest.StashKey[Beside]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the scripts of the modules that were selected, unless other processes run tests as well."""
    items = [item for item in session.items if isinstance(item, pytest.Function)]
    if find_spec("triton") is not None and not session.config.option.collectonly:
        is_alone = not hasattr(session.config, "workerinput")
        scripts = [script for item in items for script in getattr(item.module, "BESIDE", ()) if is_alone]
        session.config.stash[BESIDE] = Beside(scripts)


def pytest_unconfigure(config: pytest.Config) -> None:
    """An interrupted run starts no further script."""
    if BESIDE in config.stash:
        config.stash[BESIDE].close()


@pytest.fixture(scope="session")
def beside(request: pytest.FixtureRequest) -> Beside:
    """The scripts that run beside the suite."""
    return request.config.stash[BESIDE]


@pytest.fixture(scope="session", params=[False, True], ids=["strict", "fast"])
def bf16(request: pytest.FixtureRequest) -> bool:
    """Both arithmetic profiles."""
    return bool(request.param)


@pytest.fixture(scope="session")
def cpu(bf16: bool) -> Ops:
    """The batch-invariant kernels on two threads, which share even the smallest call."""
    ops = CpuOps(bf16, True, 2)
    ops.workers.handoff_cost = 0
    return ops


@pytest.fixture(scope="session")
def single(bf16: bool) -> Ops:
    """The same kernels on one thread."""
    return select_ops("cpu", bf16=bf16, num_threads=1)


@pytest.fixture(scope="session")
def reference(bf16: bool) -> Ops:
    """The definition."""
    return select_ops("reference", bf16=bf16)


@pytest.fixture
def draw(bf16: bool) -> Draw:
    """Normal random tensors, rounded as the profile's activations are."""
    generator = torch.Generator().manual_seed(20)

    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator)
        return values.to(torch.bfloat16).to(torch.float32) if bf16 else values

    return normal
