"""An explanation, a bisection and a replay as lines for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer.verify.explain import Explanation, Top

if TYPE_CHECKING:
    from deepinfer.verify.bisection import Bisection
    from deepinfer.verify.pack import Replayed


def explanation_lines(found: Explanation) -> list[str]:
    """The block that a report prints below a failing check."""
    ids = " ".join(map(str, found.token_ids[:12])) + (" ..." if len(found.token_ids) > 12 else "")
    lines = [
        f"case        {found.case_id}",
        f"sides       {found.sides}",
        f"tokens      {len(found.token_ids)} ids {ids}  sha256 {found.token_hash}",
    ]
    if found.mismatch is not None:
        lines.append(f"difference  {found.array}: {found.mismatch}")
        return [*lines, f"repeat      {found.repro}"]
    place = f"position {found.position}, " if found.position is not None else ""
    ulp = "not comparable" if found.ulp is None else f"{found.ulp:,} ulp"
    lines += [
        f"first       {place}{found.array}{list(found.coordinates)}: {found.left_hex} ({found.left}) against "
        f"{found.right_hex} ({found.right}), {ulp}",
        f"extent      {found.num_differing:,} of {found.num_elements:,} elements, "
        f"{found.num_differing_rows} of {found.num_rows} rows, max |d| {found.max_abs_diff:.9g}",
        f"divergence  KL(left, right) {found.kl_left_right:.3g} nats, "
        f"KL(right, left) {found.kl_right_left:.3g} nats",
        f"verdict     {found.flip}" + (f", gap {found.flip_gap:.3g} nats" if found.flip_gap else ""),
        f"top left    {_tops(found.top_left)}",
        f"top right   {_tops(found.top_right)}",
        *(f"boundary    {line}" for line in found.boundaries),
        f"repeat      {found.repro}",
    ]
    return lines


def _tops(tops: Sequence[Top]) -> str:
    return "  ".join(f"{top.token_id}: {top.logprob:.6f}" for top in tops) or "-"


def render_bisection(found: Bisection) -> str:
    """What taking a case apart found."""
    if found.blocked is not None:
        return f"undecided: {found.blocked}"
    if not found.differs:
        return f"{found.case.case_id}: both sides give the same bytes here ({found.case.describe()})"
    lines = []
    if found.shrunk is not None:
        quality = "1-minimal" if found.shrunk.is_minimal else "not minimal: the limit of runs was reached"
        lines += [
            f"shrunk      from {found.case.describe()}",
            f"            to   {found.shrunk.case.describe()}",
            f"            {quality} after {found.shrunk.num_runs} runs",
        ]
    if found.explanation is not None:
        lines += explanation_lines(found.explanation)
    where = (
        found.location.describe() if found.location else "every traced op agrees; the difference lies outside"
    )
    return "\n".join([*lines, f"named       {where}"])


def render_replay(found: Replayed) -> str:
    """What became of a packed case."""
    if found.blocked is not None:
        return f"{found.case_id}: undecided: {found.blocked}"
    moved = " and ".join(found.moved)
    bytes_here = f"the {moved} side gives other bytes than when packed" if moved else "both sides as packed"
    if not found.differs:
        return f"{found.case_id}: no difference here; {bytes_here}"
    assert found.explanation is not None
    return "\n".join([f"{found.case_id}: still differs; {bytes_here}", *explanation_lines(found.explanation)])
