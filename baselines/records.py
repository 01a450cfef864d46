"""Records of the ledger and their lines: each line carries the hash of everything before it.

    HASH {"format": ..., "revision": 3, "action": "refresh", "lines": 2, ...}      what, who, when, why, with
    what HASH {"kind": "pending", "scope": 0, "sample": "doc-1", ...}                   one change of one key
    HASH {"kind": "pending", "scope": 0, "sample": "doc-2", ...}

HASH is the sha256 of the previous line's HASH and this line's JSON; the first line of a revision follows the
last line of the revision before. So the first bad byte is named by its line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from deepinfer.baselines.blobs import BlobRef
from deepinfer.baselines.key import Key, Scope

LEDGER_FORMAT = "deepinfer-ledger/1"
GENESIS = hashlib.sha256(LEDGER_FORMAT.encode()).hexdigest()

KINDS = ("lock", "pending", "same", "seen", "accept", "reject", "remove")
"""What a change does to its key: lock and accept set the locked entry; pending sets the one for review; same
(equal to what is locked) and reject clear that; seen (equal to what is pending) changes nothing; remove ends
the key."""


class Entry(NamedTuple):
    """What is locked for one key.

    Attributes:
        num_tokens: scored positions.
        num_rows: rows in the blob, holes included.
        nll: nats over the scored positions, as exact hex float.
        digest: canonical sha256 over token ids and log-probability bits.
        blob: content name of the blob.
        row: first row in it.
        revision: ledger revision that brought these bits, and with them their provenance; 0 before it is
            written. Accepting an entry keeps it.
    """

    num_tokens: int
    num_rows: int
    nll: str
    digest: str
    blob: str
    row: int
    revision: int = 0


class Change(NamedTuple):
    """One line of a revision; ``entry`` for lock, pending and accept."""

    kind: str
    key: Key
    entry: Entry | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """Who, when, why and with what.

    Attributes:
        action: command that wrote the revision.
        time: UTC, ISO 8601.
        who: user name.
        host: machine.
        reason: words of the user, or of the command.
        command: command line.
        provenance: everything besides the platform that could move bits, read back where it is used.
        campaign: a sharded refresh, as ``ID i/K``; empty otherwise.
    """

    action: str
    time: str
    who: str
    host: str
    reason: str = ""
    command: str = ""
    provenance: dict[str, str]
    campaign: str = ""


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One step of the ledger.

    Attributes:
        number: 1 for the first.
        generation: fencing generation of its writer.
        nonce: unlike that of any other revision, so that its writer recognises it.
        note: who, when, why.
        changes: lines, in order.
        blobs: blobs that this revision introduces.
        removed_blobs: content names whose files ``prune`` takes away.
        last_hash: hash of its last line; the next revision continues from it.
    """

    number: int
    generation: int
    nonce: str
    note: Note
    changes: tuple[Change, ...] = ()
    blobs: tuple[BlobRef, ...] = ()
    removed_blobs: tuple[str, ...] = ()
    last_hash: str = ""


class BadLineError(ValueError):
    """A line that is not what was written; ``line`` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        """Keep the number of the line."""
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def seal_lines(records: Sequence[bytes], previous_hash: str) -> tuple[bytes, str]:
    """Chain JSON lines to ``previous_hash``; returns the file's bytes and the last hash."""
    lines = []
    for record in records:
        previous_hash = _next_hash(previous_hash, record)
        lines.append(previous_hash.encode() + b" " + record + b"\n")
    return b"".join(lines), previous_hash


def open_lines(content: bytes, previous_hash: str) -> Iterator[tuple[bytes, str]]:
    """JSON bytes and hash of each line, every line checked.

    Raises:
        BadLineError: the first line that was changed, cut or added.
    """
    lines = content.split(b"\n")
    if lines.pop() != b"":
        raise BadLineError(len(lines) + 1, "is cut off")
    for number, line in enumerate(lines, 1):
        record = line[65:]
        previous_hash = _next_hash(previous_hash, record)
        if line[:65] != previous_hash.encode() + b" ":
            raise BadLineError(number, "does not have the hash that chains it to the line before")
        yield record, previous_hash


def to_json(members: dict[str, Any]) -> bytes:
    """One line of JSON: sorted keys, no spaces, no NaN."""
    return json.dumps(
        members, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def encode_revision(revision: Revision, previous_hash: str) -> bytes:
    """The bytes of a revision's file."""
    scopes: dict[Scope, int] = {}
    blobs: dict[str, int] = {}
    lines = []
    for kind, key, entry in revision.changes:
        members: dict[str, Any] = {
            "kind": kind,
            "scope": scopes.setdefault(key.scope, len(scopes)),
            "sample": key.sample,
        }
        if entry is not None:
            members |= {
                "tokens": entry.num_tokens,
                "rows": entry.num_rows,
                "nll": entry.nll,
                "digest": entry.digest,
                "blob": blobs.setdefault(entry.blob, len(blobs)),
                "row": entry.row,
            }
            if entry.revision:
                members["from"] = entry.revision
        lines.append(to_json(members))
    note = revision.note
    header = {
        "format": LEDGER_FORMAT,
        "revision": revision.number,
        "generation": revision.generation,
        "nonce": revision.nonce,
        "lines": len(lines),
        "action": note.action,
        "time": note.time,
        "who": note.who,
        "host": note.host,
        "reason": note.reason,
        "command": note.command,
        "provenance": note.provenance,
        "campaign": note.campaign,
        "scopes": [scope.to_dict() for scope in scopes],
        "entry_blobs": list(blobs),
        "blobs": [list(blob) for blob in revision.blobs],
        "removed_blobs": list(revision.removed_blobs),
    }
    return seal_lines([to_json(header), *lines], previous_hash)[0]


def decode_revision(content: bytes, number: int, previous_hash: str) -> Revision:
    """Read what `encode_revision` wrote.

    Raises:
        BadLineError: a changed, missing or added line; or a file that is another revision.
    """
    lines = open_lines(content, previous_hash)
    first = next(lines, None)
    if first is None:
        raise BadLineError(1, "is missing")
    header, last_hash = json.loads(first[0]), first[1]
    if header.get("format") != LEDGER_FORMAT or header.get("revision") != number:
        raise BadLineError(1, f"is not revision {number} of {LEDGER_FORMAT}")
    scopes = [Scope.from_dict(members) for members in header["scopes"]]
    blobs: list[str] = header["entry_blobs"]
    records = []
    for record, last_hash in lines:  # noqa: B007 - the last hash is wanted after the loop
        records.append(record)
    changes = []
    for members in json.loads(b"[" + b",".join(records) + b"]"):  # at once: half the time of line by line
        entry = None
        if "digest" in members:
            entry = Entry(
                members["tokens"],
                members["rows"],
                members["nll"],
                members["digest"],
                blobs[members["blob"]],
                members["row"],
                members.get("from", number),
            )
        changes.append(Change(members["kind"], Key(scopes[members["scope"]], members["sample"]), entry))
    if len(changes) != header["lines"]:
        raise BadLineError(len(changes) + 2, f"is missing; the revision has {header['lines']} changes")
    return Revision(
        number=number,
        generation=header["generation"],
        nonce=header["nonce"],
        note=Note(
            action=header["action"],
            time=header["time"],
            who=header["who"],
            host=header["host"],
            reason=header["reason"],
            command=header["command"],
            provenance=header["provenance"],
            campaign=header["campaign"],
        ),
        changes=tuple(changes),
        blobs=tuple(BlobRef(*blob) for blob in header["blobs"]),
        removed_blobs=tuple(header["removed_blobs"]),
        last_hash=last_hash,
    )


def _next_hash(previous_hash: str, record: bytes) -> str:
    return hashlib.sha256(previous_hash.encode() + b" " + record).hexdigest()
