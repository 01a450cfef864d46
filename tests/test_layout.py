"""The shape of the repository: who imports whom, what ships, and what a file may be called."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import deepinfer

ROOT = Path(deepinfer.__file__).parent
ROOMS = ("kernels", "engine", "eval", "baselines", "verify", "commands")

# What each room may import from this repository, and from elsewhere (besides the standard library and numpy).
ROOM_IMPORTS = {
    "kernels": set[str](),
    "engine": {"kernels"},
    "baselines": set[str](),
    "eval": {"engine", "baselines"},
    "verify": {"eval", "engine", "kernels", "baselines"},
    "commands": {"verify", "eval", "engine", "baselines"},
    "cli": {"verify", "eval", "engine", "baselines", "commands"},
}
LIBRARY_IMPORTS = {
    "kernels": {"torch", "numba", "llvmlite"},
    "engine": {"torch", "safetensors", "numba", "tokenizers"},
    "baselines": {"pyarrow", "filelock"},
    "eval": {"tokenizers", "pandas", "pyarrow", "filelock", "safetensors"},
    "verify": {"pandas", "safetensors"},
    "commands": {"click", "rich"},
    "cli": {"click"},
}
FORBIDDEN_STEMS = {"utils", "util", "common", "helpers", "helper", "misc"}
LIBRARY_STEMS = {"triton", "torch", "numpy", "numba", "pandas", "pyarrow", "vllm", "ray", "click", "rich"}
MAX_LINES = 300


def python_files() -> list[Path]:
    """Every Python file of ours, as a path relative to the root."""
    folders = (*ROOMS, "tests", "benchmarks")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.py"), *found])


def room_files() -> list[Path]:
    return [path for path in python_files() if path.parts[0] in ROOMS or path.name == "cli.py"]


def room_of(path: Path) -> str:
    return "cli" if path.name == "cli.py" else path.parts[0]


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere in it; a relative import yields a leading dot."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module == "deepinfer":  # the names are rooms
                yield from (f"deepinfer.{alias.name}" for alias in node.names)
            else:
                yield module


def forbidden_import(path: Path, module: str) -> str | None:
    """Why a file must not import a module, or None."""
    room, top = room_of(path), module.split(".")[0]
    if not top:
        return "relative import"
    if top in ROOMS:
        return f"imports the room as {top}, not as deepinfer.{top}"
    if top == "deepinfer":
        target = module.split(".")[1] if "." in module else ""
        if target in {room, "__version__"} or target in ROOM_IMPORTS[room]:
            return None
        return f"{room} may not import {target or 'the root package'}"
    if top in sys.stdlib_module_names or top == "numpy" or top in LIBRARY_IMPORTS[room]:
        return None
    if top == "triton" and path.parts[:2] == ("kernels", "gpu"):
        return None
    if top == "pytest" and path == Path("baselines/pytest_plugin.py"):
        return None
    return f"{room} may not import {top}"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_rooms_import_only_what_they_may() -> None:
    wrong = [
        f"{path}: {reason}"
        for path in room_files()
        for module in imported_modules(path)
        if (reason := forbidden_import(path, module))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("kernels/cpu/linear.py", "deepinfer.engine.api"),
        ("engine/llm.py", "deepinfer.eval.windows"),
        ("baselines/key.py", "torch"),
        ("baselines/key.py", "pytest"),
        ("verify/compare.py", "kernels.cpu"),
        ("engine/llm.py", ".api"),
        ("kernels/cpu/linear.py", "triton"),
        ("eval/runner.py", "transformers"),
    ],
)
def test_a_forbidden_import_is_seen(path: str, module: str) -> None:
    assert forbidden_import(Path(path), module)


def test_package_list_matches_the_folders() -> None:
    folders = {path.parent for path in room_files() if path.name == "__init__.py"}
    holding_code = {path.parent for path in room_files() if path.parent != Path(".")}
    assert holding_code == folders, "every folder with Python files is a package"
    listed = project()["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(["deepinfer", *(f"deepinfer.{'.'.join(f.parts)}" for f in folders)])


def test_root_holds_exactly_two_python_files() -> None:
    assert sorted(path.name for path in ROOT.glob("*.py")) == ["__init__.py", "cli.py"]


def test_init_files_hold_a_docstring_only() -> None:
    for path in room_files():
        if path.name == "__init__.py" and path.parent != Path("kernels"):
            body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
            assert len(body) == 1, path
            assert ast.get_docstring(ast.Module(body, [])), path


def test_files_are_named_for_what_they_hold() -> None:
    shadowing = FORBIDDEN_STEMS | LIBRARY_STEMS | set(sys.stdlib_module_names)
    names = {Path(part).stem for path in room_files() for part in path.parts}
    assert names & shadowing == set()


def test_no_file_is_longer_than_three_hundred_lines() -> None:
    lengths = {
        str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in python_files()
    }
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_nothing_names_a_place_on_one_machine() -> None:
    # Assembled so that this file does not match itself.
    place = re.compile("/(" + "|".join(["work", "tmp", "root", "home", "Users"]) + ")/")
    names = ["Makefile", "NOTICE", "pyproject.toml", ".gitignore", ".pre-commit-config.yaml", ".ci/run"]
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.*")]
    paths = [*(ROOT / path for path in python_files()), *(ROOT / name for name in names), *texts]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        if path.is_file() and path.suffix != ".pyc"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if place.search(line)
    ]
    assert found == []


def test_package_data_covers_the_model_and_the_workloads() -> None:
    globs = project()["tool"]["setuptools"]["package-data"]
    for package, folder, base in [
        ("deepinfer", "models", ROOT),
        ("deepinfer.eval", "workloads", ROOT / "eval"),
        ("deepinfer.baselines", "locked", ROOT / "baselines"),
    ]:
        files = [path.relative_to(base) for path in (base / folder).rglob("*") if path.is_file()]
        assert files
        # A setuptools glob does not reach into subfolders, so the number of parts must agree too.
        for file in files:
            assert any(
                fnmatch(str(file), glob) and glob.count("/") == len(file.parts) - 1 for glob in globs[package]
            ), file


def test_version_is_written_once_in_each_place() -> None:
    assert project()["project"]["version"] == deepinfer.__version__


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from deepinfer.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "verify" in done.stdout
