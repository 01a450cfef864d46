"""What a configuration promises: every clause of product.md section 4, and where it stands here.

A clause that cannot exist in this version or configuration is *not applicable*, never quietly kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from deepinfer.engine.api import Device, EngineConfig, PrefillMode, Profile
from deepinfer.engine.model_config import ModelConfig


class Standing(StrEnum):
    """Where a clause stands in one configuration."""

    HOLDS = "holds"
    NOT_PROMISED = "not promised"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One thing that the bits of an answer must not depend on.

    Attributes:
        name: short name.
        standing: where it stands.
        about: what the bits do not depend on, or why the clause does not hold.
        check: the check of ``deepinfer verify`` that shows it, None if only the test suite does.
    """

    name: str
    standing: Standing
    about: str
    check: str | None = None


def clauses(engine: EngineConfig, model: ModelConfig) -> tuple[Clause, ...]:
    """The promise of one configuration on one model, in the order of product.md section 4."""
    invariant = engine.backend == engine.device.kernel_set
    on_cpu = engine.device is Device.CPU

    def kept(name: str, about: str, check: str | None = None) -> Clause:
        if not invariant:
            reason = f"kernel set {engine.backend} defines meaning within a tolerance and promises no bits"
            return Clause(name=name, standing=Standing.NOT_PROMISED, about=reason)
        return Clause(name=name, standing=Standing.HOLDS, about=about, check=check)

    def absent(name: str, reason: str) -> Clause:
        return Clause(name=name, standing=Standing.NOT_APPLICABLE, about=reason)

    is_exact_model = engine.prefill is PrefillMode.OFF
    reuse = "whether a prefix came from the cache in memory or was computed"
    strict = engine.profile is Profile.STRICT
    return (
        kept("rerun", "when, or in which process, it is computed", "rerun"),
        kept("company", "who shares the batch, its size and order, the place in it", "batch"),
        kept("chunks", "how the prefill of a prompt is cut into steps", "chunks"),
        kept("prefix", reuse, "prefix")
        if engine.prefix_caching
        else absent("prefix", "prefix reuse is switched off"),
        absent("prefix-tiers", "this version keeps no prefix on disk or on another machine"),
        kept("preemption", "preemption and recomputation", "preemption"),
        kept("decode", "whether a position was prefilled or decoded", "decode")
        if is_exact_model
        else absent("decode", f"prefill {engine.prefill} drops rows that decoding would have computed"),
        kept("speculation", "whether drafts are verified, how many, and what came of them", "speculation")
        if model.num_nextn_predict_layers
        else absent("speculation", "the model has no draft stages"),
        kept("async", "whether a step is planned while another runs", "asynchrony"),
        kept("threads", "the number of CPU threads", "threads")
        if on_cpu
        else absent("threads", f"CPU threads compute nothing on device {engine.device}"),
        kept(
            "graphs", "whether small steps are padded and recorded (CUDA graphs on such a device)", "graphs"
        ),
        absent("devices", "this version runs on one device"),
        kept("yoco", "whether truncated prefill masks rows or leaves them out", "yoco-logprobs")
        if model.supports_truncated_prefill
        else absent("yoco", "a decoder layer of this model owns a compressor, so no row can be dropped"),
        kept("machine", "vendor and vector width of the processor, or the device (portable bits)")
        if strict
        else Clause(
            name="machine",
            standing=Standing.NOT_PROMISED,
            about="bits of profile fast belong to one platform",
        ),
    )
