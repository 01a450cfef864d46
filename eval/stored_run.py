"""Reading a finished run folder, with every check that its writer made possible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.errors import RunError
from deepinfer.eval.publish import read_sealed_json
from deepinfer.eval.records import RUN_FORMAT, canonical_digest, collect_outcomes
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.shard_file import SampleOutcome, read_shard


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A complete, verified run.

    Attributes:
        path: its folder.
        manifest: the content of ``manifest.json``.
        outcomes: sample id -> what became of it, in the order of the manifest.
    """

    path: Path
    manifest: dict[str, Any]
    outcomes: dict[str, SampleOutcome]

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that could move a bit of the rows."""
        configuration: dict[str, Any] = self.manifest["configuration"]
        return configuration

    @property
    def policies(self) -> tuple[str, ...]:
        """Labels of the window policies."""
        return tuple(self.configuration["policies"])

    def rows(self, sample_id: str, policy: str) -> SampleRows:
        """The rows of one sample under one policy; a KeyError when it failed or was never asked for."""
        for rows in self.outcomes[sample_id].rows:
            if rows.policy == policy:
                return rows
        raise KeyError((sample_id, policy))


def read_run(path: Path) -> StoredRun:
    """Read and verify a run folder.

    Raises:
        RunError: not a run, not complete, or damaged; names the file.
    """
    manifest_path = path / "manifest.json"
    if not manifest_path.exists():
        if (path / "run.json").exists():
            raise RunError(
                f"{path}: the run is not complete (no manifest.json); run its command again to finish it"
            )
        raise RunError(f"{path}: is not a run folder (no manifest.json); give a folder written with --out")
    manifest = read_sealed_json(manifest_path)
    if manifest.get("format") != RUN_FORMAT:
        raise RunError(
            f"{manifest_path}: format {manifest.get('format')!r} is not {RUN_FORMAT!r}; score again"
        )
    listed = {shard["file"] for shard in manifest["shards"]}
    for stranger in sorted({shard.name for shard in path.glob("shard-*.parquet")} - listed):
        raise RunError(f"{path / stranger}: is not in the manifest; move it away")
    found: dict[str, SampleOutcome] = {}
    for name in sorted(listed):
        outcomes, _ = read_shard(path / name)
        collect_outcomes(path / name, outcomes, found)
    if canonical_digest(found) != manifest["canonical_digest"]:
        raise RunError(f"{path}: the rows do not have the digest of the manifest; run into a new folder")
    return StoredRun(
        path=path,
        manifest=manifest,
        outcomes={sample["sample_id"]: found[sample["sample_id"]] for sample in manifest["samples"]},
    )
