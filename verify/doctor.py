"""``deepinfer doctor``: the machine, the kernels, the promise and the memory of one configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deepinfer.engine.api import (
    CacheFormat,
    EngineConfig,
    GenerateRequest,
    Profile,
    SamplingParams,
    ScoreRequest,
)
from deepinfer.engine.bundled import bundled_model_dir
from deepinfer.engine.cache.footprint import RELEASED, ByteFormulas, Footprint, as_lines, measure
from deepinfer.engine.config import load_model_config
from deepinfer.engine.draft_request import DraftRequest
from deepinfer.engine.torch_threads import kernel_threads
from deepinfer.eval.environment import describe_environment, processor_name
from deepinfer.eval.provenance import platform_of, provenance_of
from deepinfer.verify.promise import Clause, clauses

_REQUEST_LENGTHS = (1024, 8192)
_WARM_TOKENS = 160
"""Ids of the sequence that compiles the kernels: more than a block of the caches."""


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """The compiled kernels of this machine.

    Attributes:
        digest: SHA-256 (hex) of the kernel sources.
        cache_folder: where compiled kernels are kept.
        num_cached: compiled kernels in it.
        vector_lanes: float32 lanes of the strict kernels' vectors.
    """

    digest: str
    cache_folder: Path
    num_cached: int
    vector_lanes: int


@dataclass(frozen=True, kw_only=True)
class WarmFacts:
    """What the first use of the kernels cost in this process.

    Attributes:
        first_s: scoring, drafting and generating one short sequence for the first time.
        again_s: the same once more.
        num_compiled: kernels that had to be compiled; 0 if all came from the cache folder.
    """

    first_s: float
    again_s: float
    num_compiled: int


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything ``deepinfer doctor`` knows.

    Attributes:
        environment: versions and machine.
        processor: its name, where the system tells it.
        num_threads: threads that the kernels would use.
        platforms: profile -> platform of its baselines: what its bits may depend on.
        provenance: everything else in use that could move bits, as baselines record it.
        kernels: compiled kernels.
        engine: the configuration asked about.
        model: name of the checkpoint folder.
        promise: clauses under each profile, the configuration otherwise the same.
        measured: bytes of this model's caches, counted on allocated ones.
        formula: the same by the closed formulas.
        request_bytes: context length -> bytes that a request of that length holds.
        warm: cost of the first use, None if it was not asked for.
    """

    environment: Mapping[str, Any]
    processor: str
    num_threads: int
    platforms: Mapping[Profile, str]
    provenance: Mapping[str, str]
    kernels: KernelFacts
    engine: EngineConfig
    model: str
    promise: Mapping[Profile, tuple[Clause, ...]]
    measured: Footprint
    formula: Footprint
    request_bytes: Mapping[int, int]
    warm: WarmFacts | None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "environment": {**self.environment, "processor": self.processor},
            "platforms": {profile.value: name for profile, name in self.platforms.items()},
            "provenance": dict(self.provenance),
            "kernels": {**asdict(self.kernels), "cache_folder": str(self.kernels.cache_folder)},
            "configuration": {**asdict(self.engine), "num_threads": self.num_threads},
            "model": self.model,
            "promise": {
                profile.value: [asdict(clause) for clause in found] for profile, found in self.promise.items()
            },
            "cache_bytes": {
                "measured": as_lines(self.measured),
                "formula": as_lines(self.formula),
                "released_model": as_lines(RELEASED),
                "per_request": {str(length): size for length, size in self.request_bytes.items()},
            },
            "warm": None if self.warm is None else asdict(self.warm),
        }


def examine(model: Path | None, engine: EngineConfig, *, warm: bool = False) -> Diagnosis:
    """Look at the machine and at one configuration of a model.

    Args:
        model: checkpoint folder, None for the bundled one.
        engine: the configuration.
        warm: load the model, and time the first use of the kernels.

    Raises:
        DeepInferError: the model's configuration, or with ``warm`` the model itself, cannot be used.
    """
    folder = bundled_model_dir() if model is None else model
    config = load_model_config(folder)
    exact = engine.cache_format is CacheFormat.NONE
    measured = measure(config, exact=exact)
    lengths = [n for n in _REQUEST_LENGTHS if n < config.max_position_embeddings]
    warm_facts = _warm_up(folder, engine) if warm else None
    return Diagnosis(
        environment=describe_environment(),
        processor=processor_name(),
        num_threads=kernel_threads(engine),
        platforms={profile: platform_of(replace(engine, profile=profile)) for profile in Profile},
        provenance=provenance_of(engine),
        kernels=_kernel_facts(),
        engine=engine,
        model=folder.name if folder.is_dir() else str(folder),
        promise={profile: clauses(replace(engine, profile=profile), config) for profile in Profile},
        measured=measured,
        formula=ByteFormulas.of(config).evaluate(exact=exact),
        request_bytes={n: measured.of_request(n) for n in [*lengths, config.max_position_embeddings]},
        warm=warm_facts,
    )


def _kernel_facts() -> KernelFacts:
    from deepinfer.kernels.cpu.compiled import cache_folder, kernel_sources_digest
    from deepinfer.kernels.cpu.fma_tile import VECTOR

    return KernelFacts(
        digest=kernel_sources_digest(),
        cache_folder=cache_folder(),
        num_cached=_num_compiled(cache_folder()),
        vector_lanes=VECTOR,
    )


def _num_compiled(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.nbc"))  # numba's name for the object code of one signature


def _warm_up(folder: Path, engine: EngineConfig) -> WarmFacts:
    from deepinfer.engine.llm import LLM
    from deepinfer.kernels.cpu.compiled import cache_folder

    llm = LLM(folder, engine)
    length = min(_WARM_TOKENS, llm.model_config.max_position_embeddings - 1)
    token_ids = [i % (llm.model_config.vocab_size // 2) for i in range(length)]

    def use() -> float:
        started_s = time.perf_counter()
        llm.score([ScoreRequest(request_id="score", token_ids=token_ids)])
        llm.draft([DraftRequest(request_id="draft", token_ids=token_ids)])
        params = SamplingParams(seed=0, max_tokens=2, num_logprobs=1)
        llm.generate([GenerateRequest(request_id="generate", token_ids=token_ids, params=params)])
        return time.perf_counter() - started_s

    before = _num_compiled(cache_folder())
    first_s = use()
    compiled = _num_compiled(cache_folder()) - before
    return WarmFacts(first_s=first_s, again_s=use(), num_compiled=compiled)
