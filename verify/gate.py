"""What a project gates on: the ``[tool.deepinfer]`` table of ``pyproject.toml``, or ``deepinfer.toml``.

[tool.deepinfer]                 # in deepinfer.toml the same keys stand without this header
store = "baselines.lock"         # relative to the file
checks = ["baselines", "batch"]  # of 'deepinfer verify'; all of them when left out
max_z = 3.0                      # tolerance mode: a regression is a paired z above this ...
max_increase = 0.001             # ... and a perplexity up by more than this

[[tool.deepinfer.workloads]]
workload = "texts/mine.jsonl"    # bundled name or file, relative to the file
policy = "document"
max_tokens = 256
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.errors import ConfigError
from deepinfer.eval.scoring_plan import BUNDLED_PLANS, ScoringPlan
from deepinfer.eval.workload import BUNDLED_WORKLOADS

DEFAULT_STORE = "baselines.lock"
_GATE_FILE = "deepinfer.toml"
_PLAN_KEYS = {"workload": str, "policy": str, "max_tokens": int}
_GATE_KEYS = {"store": str, "checks": list, "max_z": float, "max_increase": float, "workloads": list}


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A project's gate; the defaults are those of a folder without one.

    Attributes:
        project: folder that relative paths start from and where a new store is put.
        origin: the file it was read from, None without one.
        store: store of baselines that the project names.
        checks: checks of ``deepinfer verify``; empty runs all.
        plans: what is locked, and how it is scored.
        max_z: tolerance mode: largest paired z that is no regression.
        max_increase: tolerance mode: largest growth of perplexity that is none.
    """

    project: Path
    origin: Path | None = None
    store: Path | None = None
    checks: tuple[str, ...] = ()
    plans: tuple[ScoringPlan, ...] = BUNDLED_PLANS
    max_z: float = 3.0
    max_increase: float = 0.001


@dataclass(frozen=True, kw_only=True)
class StoreChoice:
    """Which store a command works on.

    Attributes:
        path: its folder.
        is_named: the user or the project named it, so that missing and orphaned keys count.
        is_bundled: it is the one that ships with the package, for reading only.
    """

    path: Path
    is_named: bool
    is_bundled: bool = False


@dataclass(frozen=True, kw_only=True)
class BaselineGate:
    """What the baseline check of ``deepinfer verify`` works with.

    Attributes:
        store: the store.
        is_required: missing and orphaned keys count: a store was named, or continuous integration runs.
        plans: what is locked, and how it is scored.
        max_z: as in `Gate`.
        max_increase: as in `Gate`.
    """

    store: StoreChoice
    is_required: bool = False
    plans: tuple[ScoringPlan, ...] = BUNDLED_PLANS
    max_z: float = Gate.max_z
    max_increase: float = Gate.max_increase


def baseline_gate(named: Path | None, gate: Gate, *, is_ci: bool) -> BaselineGate:
    """The baseline check of a project."""
    store = choose_store(named, gate)
    return BaselineGate(
        store=store,
        is_required=store.is_named or is_ci,
        plans=gate.plans,
        max_z=gate.max_z,
        max_increase=gate.max_increase,
    )


def bundled_gate() -> BaselineGate:
    """The check of the bundled store, outside any project."""
    return BaselineGate(store=StoreChoice(path=bundled_store_dir(), is_named=False, is_bundled=True))


def bundled_store_dir() -> Path:
    """The store that ships with the package: strict bits of the bundled model on the bundled texts."""
    return Path(__file__).resolve().parent.parent / "baselines" / "locked"


def load_gate(start: Path) -> Gate:
    """The gate of the project that ``start`` lies in: the nearest file upwards that has one.

    Raises:
        ConfigError: an unreadable file, an unknown key or a value of another type.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        for path in (folder / _GATE_FILE, folder / "pyproject.toml"):
            table = _read_table(path)
            if table is not None:
                return _gate_of(path, table)
        if (folder / DEFAULT_STORE).is_dir() or (folder / ".git").exists():
            return Gate(project=folder)
    return Gate(project=start)


def choose_store(named: Path | None, gate: Gate) -> StoreChoice:
    """The store that was named, the project's, or the bundled one for reading."""
    if named is not None:
        return StoreChoice(path=named, is_named=True)
    if gate.store is not None:
        return StoreChoice(path=gate.store, is_named=True)
    default = gate.project / DEFAULT_STORE
    if default.is_dir():
        return StoreChoice(path=default, is_named=True)
    return StoreChoice(path=bundled_store_dir(), is_named=False, is_bundled=True)


def choose_store_to_write(named: Path | None, gate: Gate) -> Path:
    """The store that was named or the project's, which need not exist yet; never the bundled one."""
    choice = choose_store(named, gate)
    return gate.project / DEFAULT_STORE if choice.is_bundled else choice.path


def _read_table(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        members = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if path.name != _GATE_FILE:
            return None  # another tool's file, with its own way to complain
        raise ConfigError(f"{path}: cannot be read ({error}); mend it or move it away") from None
    table = members if path.name == _GATE_FILE else members.get("tool", {}).get("deepinfer")
    return table if isinstance(table, dict) else None


def _gate_of(path: Path, table: dict[str, Any]) -> Gate:
    _require_keys(f"{path}: deepinfer", table, _GATE_KEYS)
    project = path.parent
    given = {name: float(table[name]) for name in ("max_z", "max_increase") if name in table}
    plans = tuple(_plan_of(path, index, item) for index, item in enumerate(table.get("workloads", ())))
    return Gate(
        project=project,
        origin=path,
        store=project / table["store"] if "store" in table else None,
        checks=tuple(str(name) for name in table.get("checks", ())),
        plans=plans or BUNDLED_PLANS,
        **given,
    )


def _plan_of(path: Path, index: int, item: Any) -> ScoringPlan:
    where = f"{path}: workloads[{index}]"
    if isinstance(item, str):
        item = {"workload": item}
    if not isinstance(item, dict) or "workload" not in item:
        raise ConfigError(f"{where}: give a table with at least 'workload'")
    _require_keys(where, item, _PLAN_KEYS)
    name = item["workload"]
    if name not in BUNDLED_WORKLOADS:
        name = str(path.parent / name)
    return ScoringPlan(**{**item, "workload": name})


def _require_keys(where: str, table: dict[str, Any], known: dict[str, type]) -> None:
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"{where}: unknown key {name!r}; known are {', '.join(known)}")
        wanted = (int, float) if known[name] is float else known[name]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ConfigError(f"{where}: {name} is {value!r}; give a {known[name].__name__}")
