"""Platform and provenance of a scorer, in the words of the baseline store."""

from __future__ import annotations

from deepinfer.baselines.fingerprint import PORTABLE, cpu_platform
from deepinfer.engine.api import EngineConfig, Profile
from deepinfer.eval.environment import processor_name


def platform_of(config: EngineConfig) -> str:
    """What the bits of a configuration are allowed to depend on.

    Strict bits of the batch-invariant kernels are the same everywhere; anything else belongs to the
    processor's vendor and the instruction set in use.
    """
    if config.profile is Profile.STRICT and config.backend == "cpu":
        return PORTABLE
    from deepinfer.engine.provenance import cpu_isa  # brings torch, slow to import

    return cpu_platform(cpu_isa())


def provenance_of(config: EngineConfig) -> dict[str, str]:
    """Everything else that is in use, read back."""
    from deepinfer.engine.provenance import describe_runtime

    return {**describe_runtime(config), "processor": processor_name()}
