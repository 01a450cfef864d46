"""Strict bits do not depend on the instruction set: one digest for code compiled for old and new processors.

Each target runs in a process of its own, since numba chooses it at import; the host's own is the reference.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OPS = """
import hashlib, torch
from deepinfer.kernels.dispatch import select_ops
torch.manual_seed(11)
ops = select_ops("cpu", bf16=False, num_threads={threads})
digest = hashlib.sha256()
for rows, inputs, outputs in ((1, 256, 512), (33, 300, 130), (64, 1280, 512)):
    x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    y = ops.linear(x, ops.pack_linear(w))
    digest.update(y.numpy().tobytes())
    digest.update(ops.rms_norm(y, torch.randn(outputs), 1e-20).numpy().tobytes())
    digest.update(ops.sigmoid(y).numpy().tobytes())
    digest.update(ops.log_softmax(y).numpy().tobytes())
    heat, top_p, min_p = torch.rand(rows) + 0.5, torch.rand(rows) / 2 + 0.5, torch.rand(rows) / 50
    words = torch.randint(2**32, (rows, 16))
    for part in ops.sample(y / 8, heat, top_p, torch.full((rows,), 40), min_p, words):
        digest.update(part.numpy().tobytes())
print(digest.hexdigest())
"""

MODEL = """
import hashlib, numpy as np
from deepinfer.engine.api import EngineConfig, ScoreRequest
from deepinfer.engine.draft_request import DraftRequest
from deepinfer.engine.llm import LLM
ids = np.random.default_rng(12).integers(4, 4000, 300).tolist()
llm = LLM(None, EngineConfig(num_threads={threads}))
scored = llm.score([ScoreRequest(request_id="x", token_ids=ids, return_logits=True)])[0]
anchors = [9, 200, 300]
drafted = llm.draft([DraftRequest(request_id="x", token_ids=ids, anchors=anchors, return_logits=True)])[0]
digest = hashlib.sha256()
for array in (scored.logprobs, scored.logits, scored.final_logits, drafted.logits, drafted.confidences):
    digest.update(array.tobytes())
for name, array in sorted(llm.prefill_state(ids).items()):
    digest.update(name.encode() + array.tobytes())
print(digest.hexdigest())
"""

TARGETS = {
    "x86-64": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
    "nehalem": {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""},
    "haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+fma,+avx2"},
    "skylake-avx512": {
        "NUMBA_CPU_NAME": "skylake-avx512",
        "NUMBA_CPU_FEATURES": "+fma,+avx2,+avx512f,+avx512vl",
    },
}
NEEDED_FLAGS = {
    "haswell": {"fma", "avx2"},
    "skylake-avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw"},
}


EMULATOR = "qemu-x86_64"
"""Of Debian's ``qemu-user``: runs a program on a processor of 2008, without AVX or fma instructions."""


def digest(program: str, threads: int, cache: Path, *before: str, **environment: str) -> str:
    command = [*before, sys.executable, "-P", "-c", program.format(threads=threads)]
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def can_run(target: str) -> bool:
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.exists() else set()
    return NEEDED_FLAGS.get(target, set()) <= flags


def test_ops_have_one_digest_with_and_without_fma_instructions(tmp_path: Path) -> None:
    host = digest(OPS, 2, tmp_path)
    assert digest(OPS, 1, tmp_path, **TARGETS["nehalem"]) == host
    assert digest(OPS.replace("(11)", "(12)"), 2, tmp_path) != host, "another seed would not be seen"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_whole_run_has_one_digest_on_every_target(
    target: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not can_run(target):
        pytest.skip(f"this processor cannot run code for {target}")
    cache = tmp_path_factory.getbasetemp() / "kernels"
    host = digest(MODEL, 2, cache, ATEN_CPU_CAPABILITY="default")
    assert digest(MODEL, 1, cache) == host
    for threads, capability in ((1, "default"), (2, "avx2")):
        found = digest(MODEL, threads, cache, ATEN_CPU_CAPABILITY=capability, **TARGETS[target])
        assert found == host, f"{target}, {threads} threads, torch limited to {capability}"


@pytest.mark.slow
def test_a_short_run_has_its_digest_on_an_emulated_old_processor(tmp_path: Path) -> None:
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed")
    program = MODEL.replace("300).tolist()", "40).tolist()").replace("[9, 200, 300]", "[9, 40]")
    host = digest(program, 2, tmp_path)
    old = TARGETS["nehalem"]
    assert digest(program, 1, tmp_path, **old) == host  # compiled here: a compiler under emulation is slow
    assert digest(program, 1, tmp_path, EMULATOR, "-cpu", "Nehalem", **old) == host
