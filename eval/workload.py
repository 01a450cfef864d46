"""Workloads: named sets of documents, bundled or from a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from deepinfer.engine.errors import InputError
from deepinfer.eval.text_input import Document, notes_on, read_documents

BUNDLED_WORKLOADS = ("prose", "technical", "code", "longctx", "unicode")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named list of documents.

    Attributes:
        name: bundled name, or the file's stem.
        documents: in the order of the file; ids unique.
        notes: lines to show the user about the text.
    """

    name: str
    documents: tuple[Document, ...]
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hex sha256 over ids and texts, in order; the name of the file does not enter it."""
        total = hashlib.sha256()
        for document in self.documents:
            for part in (document.sample_id.encode("utf-8"), document.text.encode("utf-8")):
                total.update(len(part).to_bytes(8, "little") + part)
        return total.hexdigest()


def load_workload(name_or_path: str) -> Workload:
    """The bundled workload of that name, or the documents of a ``.jsonl`` or ``.txt`` file.

    Raises:
        InputError: neither, or a file with something wrong in it.
    """
    if name_or_path in BUNDLED_WORKLOADS:
        path = Path(__file__).parent / "workloads" / f"{name_or_path}.jsonl"
    else:
        path = Path(name_or_path)
        if path.suffix not in (".jsonl", ".txt"):
            known = ", ".join(BUNDLED_WORKLOADS)
            raise InputError(
                f"unknown workload {name_or_path!r}; bundled are {known}; or give FILE.jsonl or FILE.txt"
            )
    documents = read_documents(path)
    return Workload(name=path.stem, documents=tuple(documents), notes=notes_on(documents))


def load_workloads(names: tuple[str, ...]) -> tuple[Workload, ...]:
    """Load several workloads for one run.

    Raises:
        InputError: a workload or a sample id given twice; a run names a sample by its id alone.
    """
    workloads = tuple(load_workload(name) for name in names)
    names_seen = [workload.name for workload in workloads]
    for name in names_seen:
        if names_seen.count(name) > 1:
            raise InputError(f"workload {name!r} is given twice; name it once, or rename the file")
    owner: dict[str, str] = {}
    for workload in workloads:
        for document in workload.documents:
            if document.sample_id in owner:
                raise InputError(
                    f"sample id {document.sample_id!r} is in workload {owner[document.sample_id]!r} "
                    f"and again in {workload.name!r}; ids must be unique within a run"
                )
            owner[document.sample_id] = workload.name
    return workloads
