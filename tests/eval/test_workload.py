from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.engine.errors import InputError
from deepinfer.eval.workload import BUNDLED_WORKLOADS, load_workload, load_workloads


def test_the_bundled_workloads_hold_the_documents_their_readme_lists() -> None:
    counts = {name: len(load_workload(name).documents) for name in BUNDLED_WORKLOADS}
    assert counts == {"prose": 24, "technical": 24, "code": 24, "longctx": 8, "unicode": 12}


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown workload 'proze'; bundled are prose, technical, code"):
        load_workload("proze")


def test_the_digest_depends_on_ids_texts_and_their_borders(write_texts: Callable[..., Path]) -> None:
    def digest(name: str, **texts: str) -> str:
        return load_workload(str(write_texts(name=name, **texts))).digest

    base = digest("a.jsonl", x="one", y="two")
    assert digest("b.jsonl", x="one", y="two") == base
    others = [
        digest("c.jsonl", x="one", y="twO"),
        digest("d.jsonl", x="onet", y="wo"),
        digest("e.jsonl", y="two", x="one"),
        digest("f.jsonl", x="one", z="two"),
    ]
    assert base not in others
    assert len(set(others)) == 4


def test_workloads_of_one_run_share_no_name_and_no_sample(write_texts: Callable[..., Path]) -> None:
    first, second = write_texts("x", name="a.jsonl"), write_texts("y", name="b.jsonl")
    with pytest.raises(InputError, match=r"sample id 'doc-0' is in workload 'a' and again in 'b'"):
        load_workloads((str(first), str(second)))
    with pytest.raises(InputError, match="workload 'prose' is given twice"):
        load_workloads(("prose", "prose"))
