"""Traces on disk: written by ``deepinfer trace`` here, compared by ``deepinfer bisect`` there."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from deepinfer.engine.errors import InputError
from deepinfer.engine.op_trace import DraftedRow, Label
from deepinfer.verify.locate import Digests, Trace
from deepinfer.verify.written import writing

FORMAT = "deepinfer trace 1"


def write_trace(path: Path, trace: Trace, about: dict[str, Any]) -> None:
    """Write a trace; ``about`` says what was run, where, and with which versions.

    Raises:
        OSError: the file cannot be written.
    """
    numbers = {label: number for number, label in enumerate(trace.ranks)}
    rows = [
        (numbers[label], position, digest)
        for (label, position), digests in trace.digests.items()
        for digest in digests
    ]
    header = {
        "format": FORMAT,
        "about": about,
        "labels": [[*astuple(label), rank] for label, rank in trace.ranks.items()],
        "drafted": [astuple(row) for row in trace.drafted],
    }
    with writing(path), path.open("wb") as file:
        np.savez_compressed(
            file,
            header=np.frombuffer(json.dumps(header, default=str).encode(), np.uint8),
            rows=np.array(rows, np.int64).reshape(-1, 3),
        )


def read_trace(path: Path) -> tuple[Trace, dict[str, Any]]:
    """Read a trace and what was said about it.

    Raises:
        InputError: the file is no trace.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            rows = archive["rows"]
        if header["format"] != FORMAT:
            raise InputError(f"{path}: format {header['format']!r}, this version reads {FORMAT!r}")
        labels = [Label(*fields) for *fields, _ in header["labels"]]
        ranks = {label: int(fields[-1]) for label, fields in zip(labels, header["labels"], strict=True)}
        drafted = tuple(DraftedRow(*fields) for fields in header.get("drafted", []))
        found: dict[tuple[Label, int], list[int]] = {}
        for number, position, digest in rows.tolist():
            found.setdefault((labels[number], position), []).append(digest)
    except (ValueError, KeyError, TypeError, IndexError, EOFError, BadZipFile) as error:
        kind = type(error).__name__
        raise InputError(
            f"{path}: no trace of deepinfer, or a damaged one ({kind}); write one with trace --out"
        ) from None
    digests: Digests = {key: tuple(sorted(values)) for key, values in found.items()}
    return Trace(ranks=ranks, digests=digests, drafted=drafted), dict(header["about"])
