"""Fixtures shared by every test: where the data lies, and how the suite presents itself."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

import deepinfer

ROOT = Path(deepinfer.__file__).parent

# The same examples on every run and no time limit: a red test is then a defect, never a slow machine.
hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("deterministic")

# Of two processes of tests, the first compiles kernels while the second has tests that need none, and then
# finds them compiled; what takes long comes early, so that neither waits for the other in the end.
_FIRST = (
    "engine/test_generation.py",
    *("baselines/", "kernels/test_hopper", "kernels/test_compiled", "kernels/test_gpu_compiled"),
    *("kernels/", "engine/", "verify/", "eval/"),
)


def pytest_report_header() -> str:
    return f"deepinfer {deepinfer.__version__} from {ROOT}"


def _place(item: pytest.Item) -> int:
    file = item.path.relative_to(Path(__file__).parent).as_posix()
    return next((place for place, name in enumerate(_FIRST) if file.startswith(name)), len(_FIRST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not needs_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needs_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def root_dir() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Outputs of an independent implementation on a tiny random checkpoint, and that checkpoint."""
    return Path(__file__).parent / "data" / "golden"


@pytest.fixture(scope="session")
def mini_dir() -> Path:
    """The bundled trained checkpoint."""
    return ROOT / "models" / "mini"


@pytest.fixture(scope="session")
def workloads_dir() -> Path:
    """The bundled texts."""
    return ROOT / "eval" / "workloads"
