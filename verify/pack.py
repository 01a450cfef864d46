"""A failing case as one file: everything needed to see it again on another machine or in another version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.errors import InputError
from deepinfer.eval.environment import describe_environment, processor_name
from deepinfer.verify.case import Answer, Case, as_fields, case_from_dict
from deepinfer.verify.context import CheckContext
from deepinfer.verify.explain import Explanation, explain
from deepinfer.verify.outcome import judge
from deepinfer.verify.written import writing

FORMAT = "deepinfer verify pack 1"


@dataclass(frozen=True, kw_only=True)
class PackedCase:
    """One case of a pack.

    Attributes:
        case: the case.
        explanation: what it looked like where it was packed, as JSON values.
        left, right: SHA-256 of every array of each side, by name.
    """

    case: Case
    explanation: Mapping[str, Any]
    left: Mapping[str, str]
    right: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A file of failing cases.

    Attributes:
        engine: the configuration under test.
        model_digest: SHA-256 of the checkpoint.
        fingerprint: versions, machine and kernels it was made with.
        cases: the cases.
    """

    engine: EngineConfig
    model_digest: str
    fingerprint: Mapping[str, Any]
    cases: tuple[PackedCase, ...]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What became of one packed case here.

    Attributes:
        case_id: the case.
        differs: whether its sides differ here.
        moved: which sides give other bytes than where it was packed: ``left``, ``right``, both or none.
        explanation: what it looks like here, None if its sides agree.
        blocked: why it could not be decided, else None.
    """

    case_id: str
    differs: bool
    moved: tuple[str, ...]
    explanation: Explanation | None
    blocked: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def fingerprint() -> dict[str, Any]:
    """Versions, machine and kernels of this process."""
    from deepinfer.kernels.cpu.compiled import kernel_sources_digest

    return {
        **describe_environment(),
        "processor": processor_name(),
        "kernels": kernel_sources_digest(),
    }


def answer_digests(answer: Answer) -> dict[str, str]:
    """SHA-256 of every array of an answer, by name."""
    arrays: dict[str, Any] = {
        "token_ids": answer.token_ids,
        "positions": answer.positions,
        "logits": answer.logits,
        **answer.by_position,
        **answer.whole,
    }
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in sorted(arrays.items())}


def write_pack(path: Path, context: CheckContext, model_digest: str, cases: Sequence[Case]) -> None:
    """Run both sides of the cases once more and write what they gave.

    Raises:
        OSError: the file cannot be written.
    """
    packed = []
    for case in cases:
        left, right = context.trials.both(case)
        outcome = judge(case, left, right)
        seen = explain(outcome, left, right, window=context.model.sliding_window) if outcome.differs else None
        packed.append(
            {
                "case": case.to_dict(),
                "explanation": seen.to_dict() if seen else {},
                "left": answer_digests(left),
                "right": answer_digests(right),
            }
        )
    record = {
        "format": FORMAT,
        "engine": asdict(context.engine),
        "model_digest": model_digest,
        "fingerprint": fingerprint(),
        "cases": packed,
    }
    with writing(path):
        path.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


def read_pack(path: Path) -> Pack:
    """Read a pack.

    Raises:
        InputError: the file is no pack.
        OSError: it cannot be read.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or "format" not in record:
            raise ValueError("it does not say so")
        if record["format"] != FORMAT:
            raise InputError(f"{path}: format {record['format']!r}, this version reads {FORMAT!r}")
        cases = tuple(
            PackedCase(
                case=case_from_dict(item["case"]),
                explanation=item["explanation"],
                left=item["left"],
                right=item["right"],
            )
            for item in record["cases"]
        )
        engine = EngineConfig(**as_fields(record["engine"]))
        return Pack(
            engine=engine,
            model_digest=str(record["model_digest"]),
            fingerprint=record["fingerprint"],
            cases=cases,
        )
    except UnicodeDecodeError:
        raise InputError(f"{path}: no pack of verify, it is no text; write one with verify --pack") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: no pack of verify, or cut short ({error}); see verify --pack") from None
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error) if type(error) is ValueError else f"a field is missing or damaged: {error}"
        raise InputError(f"{path}: no pack of verify ({reason}); write one with verify --pack") from None


def replay(context: CheckContext, packed: PackedCase) -> Replayed:
    """Run a packed case here and say whether it still differs, and which side has other bytes than before.

    Raises:
        DeepInferError: a side could not run.
    """
    case = packed.case
    left, right = context.trials.both(case)
    outcome = judge(case, left, right)
    sides = (("left", packed.left, left), ("right", packed.right, right))
    return Replayed(
        case_id=case.case_id,
        differs=outcome.differs,
        moved=tuple(name for name, before, now in sides if answer_digests(now) != dict(before)),
        explanation=explain(outcome, left, right, window=context.model.sliding_window)
        if outcome.differs
        else None,
        blocked=outcome.blocked,
    )
