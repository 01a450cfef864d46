"""A process that stays small and forks a writer per line: a thousand killed writers then take seconds.

Each line of standard input is a JSON plan; the answer tells how the writer ended: ``exit N``, ``killed`` or
``stopped``. ``{"continue": PID}`` lets a stopped one go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from store_faults import FaultyDisk, make_key, make_samples

from deepinfer.baselines.blobs import decode, encode_blob
from deepinfer.baselines.committing import Author
from deepinfer.baselines.errors import BaselineError
from deepinfer.baselines.locks import LockKind
from deepinfer.baselines.store import Baselines, LockOptions


def write(plan: dict[str, Any]) -> int:
    options = LockOptions(
        kind=LockKind(plan["kind"]), timeout_s=plan.get("timeout_s", 20.0), stale_s=plan.get("stale_s", 90.0)
    )
    store = Baselines(Path(plan["store"]), options=options, disk=FaultyDisk(plan["at"], plan["do"]))
    try:
        writer = store.writer(Author(reason=plan.get("reason", ""), provenance={"seed": str(plan["seed"])}))
        if plan["action"] == "refresh":
            writer.refresh(make_samples(plan["seed"], plan["keys"]))
        elif plan["action"] == "lock":
            writer.lock(make_samples(plan["seed"], plan["keys"]))
        else:
            getattr(writer, plan["action"])([make_key(index) for index in plan["keys"]])
    except BaselineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def ending(pid: int, may_stop: bool) -> str:
    # Only a plan to stop is looked at for stopping: somebody may pause the whole machine meanwhile.
    _, status = os.waitpid(pid, os.WUNTRACED if may_stop else 0)
    if os.WIFSTOPPED(status):
        return "stopped"
    return "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def main() -> None:
    # Once here, so that no child pays for the first use of the libraries.
    keys, samples = zip(*make_samples(1, [0]), strict=True)
    blob = encode_blob([key.sample for key in keys], samples)
    decode(blob.content, Path("warm-up"), blob.digest)
    for line in sys.stdin:
        plan = json.loads(line)
        if "continue" in plan:
            pid = plan["continue"]
            os.kill(pid, signal.SIGCONT)
        else:
            pid = os.fork()
            if pid == 0:
                code = 70
                try:
                    code = write(plan)
                finally:
                    sys.stderr.flush()
                    os._exit(code)
        print(json.dumps({"pid": pid, "ending": ending(pid, plan.get("do") == "stop")}), flush=True)


main()
