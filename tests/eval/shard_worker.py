"""One node of a sharded refresh, on a scorer without a model: ``STORE TEXTS MODEL_DIR I K [STEP]``.

With ``STEP`` the process is killed at that step of its disk.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from fake_scorer import FakeScorer

from deepinfer.baselines.committing import Author
from deepinfer.baselines.disk import Disk
from deepinfer.baselines.store import Baselines
from deepinfer.eval.scoring_plan import ScoringPlan, plan_samples
from deepinfer.verify.baseline_run import Shard, refresh_samples


class MortalDisk(Disk):
    def __init__(self, last: int) -> None:
        self.left = last

    def before(self, step: str, path: Path) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    store, texts, model_dir, index, count, *step = sys.argv[1:]
    scorer = FakeScorer(model_dir=Path(model_dir))
    planned = plan_samples(scorer, (ScoringPlan(workload=texts),))
    disk = MortalDisk(int(step[0])) if step else Disk()
    shard = Shard(index=int(index), count=int(count), run="test")
    report = refresh_samples(
        scorer, Baselines(store, disk=disk), planned, Author(reason="test"), shard, group_rows=16
    )
    print(report.num_settled, len(scorer.seen))


if __name__ == "__main__":
    main()
