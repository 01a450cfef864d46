"""Counting a model and asking whether it fits, without its weights."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run

import pytest

from deepinfer.engine import inspection
from deepinfer.engine.available_memory import available_memory_bytes
from deepinfer.engine.config import load_model_config
from deepinfer.engine.errors import CapacityError, CheckpointError
from deepinfer.engine.inspection import ModelSummary, inspect_model, require_fit, resident_bytes
from deepinfer.engine.inspection_text import render_summary

RELEASED = {  # model.md section 12: parameters, stored bytes
    "token embedding": (661_913_600, 1_323_827_200),
    "LM head": (661_913_600, 1_323_827_200),
    "final norm": (5_120, 10_240),
    "attention": (5_064_696_320, 5_064_775_680),
    "attention and FFN norms": (409_600, 819_200),
    "hyper-connections": (39_323_760, 157_295_040),
    "routers": (78_673_920, 157_409_280),
    "shared experts": (1_415_577_600, 1_415_577_600),
    "routed experts": (543_581_798_400, 271_790_899_200),
    "compressors": (18_352_128, 36_704_256),
    "indexers": (43_516_416, 45_089_792),
    "Engram tables": (196_613_849_600, 196_613_849_600),
    "Engram projections and gates": (314_654_720, 314_736_640),
    "draft attention": (379_852_224, 379_858_176),
    "draft norms": (35_840, 71_680),
    "draft hyper-connections": (2_949_282, 11_797_128),
    "draft routers": (1_966_848, 3_935_232),
    "draft shared experts": (106_168_320, 106_168_320),
    "draft routed experts": (13_589_544_960, 6_794_772_480),
    "draft projection and heads": (144_845_056, 211_046_912),
    "vision tower, aligner, delimiters": (485_268_480, 970_536_960),
    "scales": (0, 23_563_015_184),
}
MINI = {  # model.md section 13: parameters
    "attention": 1_771_812,
    "hyper-connections": 442_854,
    "compressors": 164_224,
    "indexers": 159_936,
    "Engram tables": 3_285_888,
    "Engram projections and gates": 1_970_176,
    "draft routed experts": 2_359_296,
}


@pytest.fixture(scope="module")
def released(released_config: Path) -> ModelSummary:
    return inspect_model(released_config)


def test_released_configuration_has_the_published_totals(released: ModelSummary) -> None:
    summary = released
    parts = {part.name: (part.num_parameters, part.stored_bytes) for part in summary.components}
    assert parts == RELEASED
    assert summary.num_tensors == 96_085
    assert summary.num_parameters == 763_205_315_794
    assert summary.stored_bytes == 510_286_023_000
    assert [part.num_parameters for part in summary.subtotals] == [
        *(551_880_835_184, 14_225_362_530, 566_591_466_194)
    ]
    assert not summary.has_weights


def test_bundled_checkpoint_has_the_published_totals(mini_dir: Path) -> None:
    summary = inspect_model(mini_dir)
    parts = {part.name: part.num_parameters for part in summary.components}
    assert parts | MINI == parts
    assert (summary.num_tensors, summary.num_parameters) == (1_416, 28_834_280)
    assert summary.has_weights
    assert summary.fits


def test_stored_bytes_of_a_folder_are_those_of_its_headers(quantised_dir: Path) -> None:
    """This checkpoint keeps its head in F32, which the configuration alone cannot know."""
    index = json.loads((quantised_dir / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert inspect_model(quantised_dir).stored_bytes == index["metadata"]["total_size"]
    assert inspect_model(quantised_dir / "config.json").stored_bytes < index["metadata"]["total_size"]


def test_unquantised_folder_has_no_scales(unquantised_dir: Path) -> None:
    names = [part.name for part in inspect_model(unquantised_dir).components]
    assert "scales" not in names
    assert "routed experts" in names


def test_damaged_folder_is_an_error(tmp_path: Path, mini_dir: Path) -> None:
    (tmp_path / "config.json").write_bytes((mini_dir / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        inspect_model(tmp_path)


def test_roles_of_the_released_layers(released: ModelSummary) -> None:
    layers = {layer.name: layer for layer in released.layers}
    assert len(layers) == 43
    full, reindex, reuse = layers["layers.20"], layers["layers.24"], layers["layers.39"]
    assert (full.role, full.half, full.extras) == ("full", "decoder", ("candidate source", "decoder starts"))
    assert (reindex.role, reindex.kv_from, reindex.selection_from) == ("reindex", 20, 24)
    assert (reuse.role, reuse.selection_from, reuse.extras) == ("reuse", 36, ("draft target",))
    assert layers["layers.14"].extras == ("Engram",)
    assert layers["mtp.2"].half == "draft"


def test_report_holds_totals_roles_and_the_verdict(released: ModelSummary) -> None:
    summary = dataclasses.replace(released, available_bytes=16 * 2**30, fits=False)
    lines = render_summary(summary).splitlines()
    assert lines[-1] == "fits this machine    no"
    assert lines[-2] == "memory available     16.00 GiB"
    total = next(line for line in lines if line.startswith("total "))
    assert total.split() == ["total", "96,085", "763,205,315,794", "510,286,023,000"]
    assert any(line.startswith("layers.21-23") and "reuse" in line for line in lines)
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize("available", [None, 2**50, 2**30])
def test_verdict_follows_the_memory_of_the_machine(
    mini_dir: Path, monkeypatch: pytest.MonkeyPatch, available: int | None
) -> None:
    monkeypatch.setattr(inspection, "available_memory_bytes", lambda: available)
    monkeypatch.setattr(inspection, "resident_bytes", lambda _: 2**40)
    summary = inspect_model(mini_dir)
    assert (summary.available_bytes, summary.fits) == (available, available != 2**30)
    assert ("unknown on this platform" in render_summary(summary)) == (available is None)


def test_summary_is_json(mini_dir: Path) -> None:
    summary = inspect_model(mini_dir)
    document = json.loads(json.dumps(summary.to_dict()))
    assert document["num_parameters"] == 28_834_280
    assert document["layers"][5]["role"] == "full"


def test_resident_bytes_leave_the_tables_in_their_file(mini_dir: Path) -> None:
    in_memory = 28_834_280 - 3_285_888
    assert resident_bytes(load_model_config(mini_dir)) == 4 * (in_memory + 4096 * 256)


def test_model_that_does_not_fit_is_one_line_with_both_numbers(
    released_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_model_config(released_config)
    monkeypatch.setattr(inspection, "available_memory_bytes", lambda: 32 * 2**30)
    with pytest.raises(CapacityError, match=r"needs 2\.06 TiB of memory, .* can use 32\.00 GiB") as caught:
        require_fit(config)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("room", [0, 1])
def test_fit_is_decided_to_the_byte(mini_dir: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    config = load_model_config(mini_dir)
    monkeypatch.setattr(inspection, "available_memory_bytes", lambda: resident_bytes(config) - 1 + room)
    if room:
        require_fit(config)
    else:
        with pytest.raises(CapacityError):
            require_fit(config)


def test_unknown_memory_refuses_nothing(released_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "available_memory_bytes", lambda: None)
    require_fit(load_model_config(released_config))


def test_inspection_does_not_import_torch() -> None:
    code = "import sys, deepinfer.engine.inspection_text; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-P", "-c", code], check=False).returncode == 0


MakeTree = Callable[[dict[str, str]], tuple[Path, Path]]


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    def make(files: dict[str, str]) -> tuple[Path, Path]:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content, encoding="ascii")
        return tmp_path / "proc", tmp_path / "cgroup"

    return make


MEMINFO = "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"


def test_memory_of_the_machine_alone(make_tree: MakeTree) -> None:
    assert available_memory_bytes(*make_tree({"proc/meminfo": MEMINFO})) == 8000 * 1024


def test_limit_of_an_outer_cgroup_binds_and_its_file_cache_is_free(make_tree: MakeTree) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/outer/inner\n",
        "cgroup/outer/inner/memory.max": "max\n",
        "cgroup/outer/inner/memory.current": "5\n",
        "cgroup/outer/memory.max": "1000000\n",
        "cgroup/outer/memory.current": "900000\n",
        "cgroup/outer/memory.stat": "anon 1\ninactive_file 50000\n",
    }
    assert available_memory_bytes(*make_tree(files)) == 150_000


def test_limit_of_a_version_1_cgroup_binds(make_tree: MakeTree) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:cpu,memory:/job\n0::/\n",
        "cgroup/memory/job/memory.limit_in_bytes": "700000\n",
        "cgroup/memory/job/memory.usage_in_bytes": "600000\n",
        "cgroup/memory/job/memory.stat": "total_inactive_file 1000\n",
        "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cgroup/memory/memory.usage_in_bytes": "600000\n",
    }
    assert available_memory_bytes(*make_tree(files)) == 101_000


def test_usage_above_the_limit_is_no_negative_memory(make_tree: MakeTree) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "cgroup/memory.max": "10\n",
        "cgroup/memory.current": "20\n",
    }
    assert available_memory_bytes(*make_tree(files)) == 0
