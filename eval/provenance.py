"""Platform and provenance of a scorer, in the words of the baseline store."""

from __future__ import annotations

from deepinfer.baselines.fingerprint import PORTABLE, cpu_platform, cuda_platform
from deepinfer.engine.api import Device, EngineConfig, Profile
from deepinfer.eval.environment import processor_name


def platform_of(config: EngineConfig) -> str:
    """What the bits of a configuration are allowed to depend on.

    Strict bits of the batch-invariant kernels are the same everywhere, on a CUDA device too; anything else
    belongs to the device, or to the processor's vendor and the instruction set in use.

    Raises:
        ConfigError: a CUDA platform is asked for where there is none.
    """
    if config.profile is Profile.STRICT and config.backend == config.device.kernel_set:
        return PORTABLE
    if config.device is Device.CUDA:
        from deepinfer.engine.provenance import cuda_identity

        return cuda_platform(*cuda_identity())
    from deepinfer.engine.provenance import cpu_isa  # brings torch, slow to import

    return cpu_platform(cpu_isa())


def device_name(config: EngineConfig) -> str:
    """Where a configuration runs, in words.

    Raises:
        ConfigError: on a CUDA device, and there is none.
    """
    if config.device is Device.CPU:
        return config.device.value
    from deepinfer.engine.provenance import cuda_identity

    return f"{config.device}, {cuda_identity()[1]}"


def provenance_of(config: EngineConfig) -> dict[str, str]:
    """Everything else that is in use, read back."""
    from deepinfer.engine.provenance import describe_runtime

    return {**describe_runtime(config), "processor": processor_name()}
