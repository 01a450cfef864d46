"""Chooses a kernel set by name.

An unknown name or a missing dependency is an error, never another kernel set.
"""

from __future__ import annotations

import os

from deepinfer.kernels.interface import Ops

KERNEL_SETS = ("cpu", "reference", "triton", "library", "ascend")
"""Names that ``select_ops`` takes."""


def available_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def select_ops(
    name: str,
    *,
    bf16: bool,
    round_caches: bool = True,
    num_threads: int | None = None,
    device: str | None = None,
) -> Ops:
    """The kernel set ``name`` bound to a profile.

    Args:
        name: one of ``KERNEL_SETS``.
        bf16: profile fast (activations rounded to bfloat16) instead of strict.
        round_caches: whether cache round trips round.
        num_threads: CPU threads, all cores of the process if None; never moves a bit of ``cpu``.
        device: ``cpu`` or ``cuda``; None is where the kernel set runs by nature.

    Raises:
        ValueError: unknown name, or one whose library or device is missing.
    """
    if name not in KERNEL_SETS:
        raise ValueError(f"unknown kernel set {name!r}; there are {', '.join(KERNEL_SETS)}")
    if device == "cuda":
        require_cuda()
    if name == "cpu":
        if device == "cuda":
            raise ValueError("kernel set 'cpu' does not run on a CUDA device; choose 'triton' there")
        from deepinfer.kernels.cpu.backend import CpuOps

        return CpuOps(bf16, round_caches, num_threads or available_threads())
    if name == "reference":
        from deepinfer.kernels.reference.backend import ReferenceOps

        if device == "cuda":
            raise ValueError("kernel set 'reference' does not run on a CUDA device; choose 'library' there")
        return ReferenceOps(bf16, round_caches, num_threads or available_threads())
    if name == "ascend":
        return _ascend_ops(bf16, round_caches)
    return _triton_ops(name, bf16, round_caches, device)


def require_cuda() -> None:
    """Make sure that torch sees a CUDA device.

    Raises:
        ValueError: it does not.
    """
    import torch

    if not torch.cuda.is_available():
        raise ValueError(
            f"no CUDA device: torch {torch.__version__} sees none here; run on the CPU (--device cpu), or "
            "check the driver (nvidia-smi) and that torch is a CUDA build"
        )


def _ascend_ops(bf16: bool, round_caches: bool) -> Ops:
    """The kernels of an NPU, which ``torch_npu`` brings; in Triton's interpreter they run on the CPU."""
    import torch

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    npu = getattr(torch, "npu", None)
    if not interpreted and (npu is None or not npu.is_available()):
        raise ValueError(
            "kernel set 'ascend' needs an Ascend NPU with torch_npu and triton-ascend; torch sees none here"
        )
    from deepinfer.kernels.ascend.backend import AscendOps
    from deepinfer.kernels.ascend.capability import CHIPS, chip_of

    if npu is None or interpreted:
        return AscendOps(bf16, round_caches, torch.device("cpu"), CHIPS[0])
    return AscendOps(bf16, round_caches, torch.device("npu"), chip_of(npu.get_device_name()))


def _triton_ops(name: str, bf16: bool, round_caches: bool, device: str | None) -> Ops:
    """The device kernels; in Triton's interpreter (``TRITON_INTERPRET=1``) they run on the CPU."""
    import torch

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted:
        if device == "cpu":
            raise ValueError(f"kernel set {name!r} does not run on a CPU; choose 'cpu' there")
        require_cuda()
    place = torch.device("cpu" if interpreted else "cuda")
    try:
        from deepinfer.kernels.gpu.backend import GpuOps
        from deepinfer.kernels.gpu.fast_backend import FastGpuOps
        from deepinfer.kernels.gpu.library_backend import LibraryOps
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ValueError(
            f"kernel set {name!r} needs the triton package: pip install deepinfer[gpu]"
        ) from None
    if name == "library":
        if not bf16:
            raise ValueError(
                "kernel set 'library' has profile fast only; no library keeps the order of strict"
            )
        return LibraryOps(round_caches, place)
    return FastGpuOps(round_caches, place) if bf16 else GpuOps(False, round_caches, place)
