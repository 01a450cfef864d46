"""Fixtures of the store's tests: faults, samples, and a process that forks writers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deepinfer.baselines.fsck import check_store
from deepinfer.baselines.store import Baselines

HERE = Path(__file__).parent


def load_beside(name: str) -> ModuleType:
    """Test folders are no packages, so a module beside the tests is loaded from its file, once."""
    full = f"deepinfer_baselines_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


@pytest.fixture(scope="session")
def faults() -> Any:
    """The module ``store_faults``."""
    return load_beside("store_faults")


@pytest.fixture(scope="session")
def beside() -> Callable[[str], ModuleType]:
    """Loads a module that lies beside the tests."""
    return load_beside


@pytest.fixture
def quick_dir() -> Iterator[Path]:
    """A folder in memory where the system has one: a thousand syncs of a slow disk show nothing more."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


class Zygote:
    """Forks writers in a small process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, **plan: Any) -> dict[str, Any]:
        """Fork a writer; how it ended, or that it stopped."""
        defaults = {"kind": "kernel", "action": "refresh", "seed": 1, "keys": [0], "at": 0, "do": ""}
        return self._ask({**defaults, **plan, "store": str(plan["store"])})

    def resume(self, pid: int) -> dict[str, Any]:
        """Let a stopped writer go on."""
        return self._ask({"continue": pid})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def _ask(self, plan: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


def require_sound(root: Path) -> None:
    """A store after an accident: nothing damaged, and every blob that is visible is whole."""
    store = Baselines(root)
    report = check_store(store, repair=False)
    assert report.problems == []
    for path in (root / "blobs").glob("*/*"):
        from deepinfer.baselines.blobs import decode

        decode(path.read_bytes(), path, path.stem)


@pytest.fixture(scope="session")
def sound() -> Callable[[Path], None]:
    return require_sound
