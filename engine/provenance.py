"""What really computes here, read back from the libraries that are loaded: versions, switches, kernels,
revision."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from deepinfer import __version__
from deepinfer.engine.api import Device, EngineConfig
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.torch_threads import kernel_threads
from deepinfer.kernels.cpu.compiled import kernel_sources_digest
from deepinfer.kernels.cpu.fma_tile import VECTOR
from deepinfer.kernels.dispatch import require_cuda

_SWITCHES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that change which instructions a library chooses."""

_ROOMS = ("kernels", "engine", "eval")


def cpu_isa() -> str:
    """The instruction set that torch's kernels use, for example ``avx2``; not the best present."""
    return torch.backends.cpu.get_cpu_capability().lower()


def cuda_identity() -> tuple[tuple[int, int], str]:
    """Compute capability and name of the CUDA device.

    Raises:
        ConfigError: there is none.
    """
    try:
        require_cuda()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return torch.cuda.get_device_capability(), torch.cuda.get_device_name()


def describe_runtime(config: EngineConfig) -> dict[str, str]:
    """Everything that could move bits besides the platform, as name -> value.

    Read from the libraries as loaded, not from a list of requirements.
    """
    build = torch.__config__.show()
    facts = {
        "deepinfer": __version__,
        "code": sources_digest(),
        "code_revision": code_revision(),
        "kernel_set": kernel_sources_digest(),
        "vector_lanes": str(VECTOR),
        "backend": config.backend,
        "device": config.device.value if config.device is not Device.CPU else "",
        "threads": str(kernel_threads(config)),
        "torch_threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_isa": cpu_isa(),
        "blas": _found(r"Math Kernel Library Version (\S+)", build, "mkl ")
        or _found(r"BLAS_INFO=(\w+)", build),
        "onednn": _found(r"MKL-DNN v(\S+)", build) if "USE_MKLDNN=ON" in build else "off",
        "openmp": _found(r"OpenMP (\d+)", build),
        **{name: _version(name) for name in ("numpy", "numba", "llvmlite", "triton", "tokenizers")},
        **{f"env.{name}": os.environ[name] for name in _SWITCHES if name in os.environ},
    }
    if torch.cuda.is_available():
        facts["cuda"] = str(torch.version.cuda)
        facts["cuda_device"] = torch.cuda.get_device_name()
        facts["cuda_driver"] = _cuda_driver()
        facts["tf32"] = str(torch.backends.cuda.matmul.allow_tf32)
    return {name: value for name, value in facts.items() if value}


def sources_digest() -> str:
    """Hex sha256 over the Python files that a score goes through: the code as it is, committed or not."""
    root = Path(__file__).resolve().parent.parent
    total = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def code_revision() -> str:
    """Commit of the checkout, ``+changed`` behind it when files differ; empty outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        revision, status = (
            subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
            for arguments in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return revision + ("+changed" if status else "")


def _cuda_driver() -> str:
    listing = Path("/proc/driver/nvidia/version")
    return _found(r"Module\s+(?:for \S+\s+)?(\d+\.\S+)", listing.read_text()) if listing.exists() else ""


def _found(pattern: str, text: str, before: str = "") -> str:
    found = re.search(pattern, text)
    return before + found[1] if found else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
