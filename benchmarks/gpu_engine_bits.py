"""Strict bits of the whole engine: what the CPU says is kept by ``make``, what a device says is compared."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gpu_engine_promise import generated, recorded_steps, requests

from deepinfer.engine.api import EngineConfig, RequestFailure, ScoreRequest, ScoreResult
from deepinfer.engine.llm import LLM
from deepinfer.engine.op_trace import Tracer
from deepinfer.engine.traced_model import traced
from deepinfer.verify.locate import first_difference, trace_of
from deepinfer.verify.trace_file import read_trace, write_trace

if TYPE_CHECKING:
    from deepinfer.baselines.key import Key
    from deepinfer.baselines.records import Entry
    from deepinfer.baselines.store import Baselines

NUM_LOGITS_ROWS = 500
NUM_TEXTS = 6
KEPT_ROWS = 5
_TRACE_TOKENS = 48
Array = npt.NDArray[Any]


def make(path: Path) -> None:
    """Write the locked scores of every bundled sample, digests of logits rows, and a trace.

    The scores come out of the store that ships with the package; rows and trace are computed here.
    """
    from deepinfer.baselines.store import Baselines
    from deepinfer.eval.engines.native import NativeScorer
    from deepinfer.eval.scoring_plan import plan_samples
    from deepinfer.verify.gate import bundled_gate

    gate = bundled_gate()
    scorer, store = NativeScorer(), Baselines(gate.store.path)
    arrays: dict[str, Array] = {}
    names = []
    for planned in plan_samples(scorer, gate.plans):
        locked = store.sample(planned.key, _locked(store, planned.key))
        names.append(f"{planned.key.scope.workload_name}/{planned.key.sample}")
        arrays[f"ids/{len(names) - 1}"] = np.array(planned.token_ids, np.int32)
        arrays[f"logprobs/{len(names) - 1}"] = np.asarray(locked.logprobs, np.float32)
    rows, kept = [], []
    documents = [arrays[f"ids/{i}"] for i in np.linspace(0, len(names) - 1, 5).astype(int)]
    per_document = NUM_LOGITS_ROWS // len(documents)
    llm = LLM()
    for ids in documents:
        found = logits_rows(llm, ids[: per_document + 1])
        rows += [digest(row) for row in found]
        kept.append(found[: KEPT_ROWS // len(documents)])
    arrays["logits_ids"] = np.stack([ids[: per_document + 1] for ids in documents])
    arrays["logits_kept"] = np.concatenate(kept)
    texts = [text_digest(text) for text in generated(llm, requests(12, 150, 80)[:NUM_TEXTS])]
    facts = {"names": names, "rows": rows, "texts": texts}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    write_trace(path.with_suffix(".trace"), trace_here(EngineConfig(), documents[0]), {"made": "on the CPU"})
    total = sum(len(arrays[f"ids/{i}"]) for i in range(len(names)))
    print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB, {len(names)} samples, {total:,} tokens")


def _locked(store: Baselines, key: Key) -> Entry:
    entry = store.state().locked_entry(key)
    if entry is None:
        raise RuntimeError(f"{key} is not locked")
    return entry


def digest(row: Array) -> str:
    """SHA-256 (hex) of the bytes of one row."""
    return hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest()


def text_digest(text: list[bytes]) -> str:
    """SHA-256 (hex) of all that was said of the tokens of one sequence."""
    return hashlib.sha256(b"".join(text)).hexdigest()


def check_recorded(config: EngineConfig, expected: Path) -> dict[str, Any]:
    """See ``recorded_steps``."""
    wanted = json.loads(np.load(expected)["facts"].tobytes())["texts"]
    return recorded_steps(config, wanted, text_digest)


def logits_rows(llm: LLM, ids: Array) -> Array:
    """The rows that predict positions 1 .. n - 1 of ``ids`` [n], float32 [n - 1, V]."""
    (found,) = llm.score([ScoreRequest(request_id="rows", token_ids=ids.tolist(), return_logits=True)])
    if isinstance(found, RequestFailure) or found.logits is None:
        raise RuntimeError(f"no logits: {found}")
    return found.logits[1:]


def check_logits(config: EngineConfig, expected: Path) -> dict[str, Any]:
    """Full-vocabulary rows as bytes."""
    arrays = np.load(expected)
    wanted = json.loads(arrays["facts"].tobytes())["rows"]
    llm = LLM(None, config)
    found = [logits_rows(llm, ids) for ids in arrays["logits_ids"]]
    rows = np.concatenate(found)
    wrong = [i for i, row in enumerate(rows) if digest(row) != wanted[i]]
    seen = f"{len(rows) - len(wrong)} of {len(rows)} rows of {rows.shape[1]} logits have the bytes of the CPU"
    if wrong:
        kept = np.concatenate([part[: len(arrays["logits_kept"]) // len(found)] for part in found])
        distance = np.abs(kept - arrays["logits_kept"]).max()
        seen += f"; first wrong row {wrong[0]}; largest distance in the rows kept {distance:.3g}"
    return {"verdict": "DIFFER" if wrong else "equal", "seen": seen, "wrong": wrong[:50]}


def check_scores(config: EngineConfig, expected: Path, seconds: float) -> dict[str, Any]:
    """Log-probabilities of all bundled samples against the locked ones; short samples first."""
    arrays, started = np.load(expected), time.perf_counter()
    names = json.loads(arrays["facts"].tobytes())["names"]
    order = sorted(range(len(names)), key=lambda i: len(arrays[f"ids/{i}"]))
    llm, wrong, num_done, num_tokens = LLM(None, config), [], 0, 0
    requests = [ScoreRequest(request_id=str(i), token_ids=arrays[f"ids/{i}"].tolist()) for i in order]
    loaded = time.perf_counter()
    for result in llm.score_iter(requests):
        number = int(result.request_id)
        wanted = arrays[f"logprobs/{number}"]
        num_done, num_tokens = num_done + 1, num_tokens + len(arrays[f"ids/{number}"])
        what = _difference(result, wanted)
        if what:
            wrong.append(f"{names[number]}: {what}")
        if time.perf_counter() - started > seconds:
            break
    elapsed = time.perf_counter() - loaded
    seen = f"{num_done - len(wrong)} of {num_done} samples scored ({len(names)} in all) are as locked"
    seen += (
        f"; {num_tokens:,} tokens, {num_tokens / elapsed:.0f} a second; loaded in {loaded - started:.1f} s"
    )
    if wrong:
        seen += f"; {wrong[0]}"
    verdict = "DIFFER" if wrong else "equal" if num_done == len(names) else "partial"
    return {"verdict": verdict, "seen": seen, "wrong": wrong[:50]}


def _difference(result: ScoreResult | RequestFailure, wanted: Array) -> str:
    if isinstance(result, RequestFailure):
        return result.reason
    found = result.logprobs[-len(wanted) :]
    wrong = np.flatnonzero(found.view(np.int32) != wanted.view(np.int32))
    wrong = wrong[~(np.isnan(found[wrong]) & np.isnan(wanted[wrong]))]
    if len(wrong) == 0:
        return ""
    at = int(wrong[0])
    return f"{len(wrong)} of {len(wanted)} values differ, first at {at}: {found[at]!r} for {wanted[at]!r}"


def trace_here(config: EngineConfig, ids: Array) -> Any:
    """Digests of every op of a run over the first tokens of ``ids``."""
    tokens = ids[:_TRACE_TOKENS].tolist()
    tracer = Tracer(tokens)
    LLM(None, config).with_model(traced(tracer)).score([ScoreRequest(request_id="trace", token_ids=tokens)])
    return trace_of(tracer)


def check_trace(config: EngineConfig, expected: Path) -> dict[str, Any]:
    """The first op whose digests are not those of the CPU."""
    wanted, _ = read_trace(expected.with_suffix(".trace"))
    found = trace_here(config, np.load(expected)["logits_ids"][0])
    location = first_difference(wanted, found)
    shared = len(wanted.digests.keys() & found.digests.keys())
    seen = f"{shared:,} digests in common; " + (location.describe() if location else "all are equal")
    return {"verdict": "DIFFER" if location or not shared else "equal", "seen": seen}
