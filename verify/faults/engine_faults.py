"""Faults in the engine: stale caches, wrong windows, wrong owners, lost seeds, moved rectangles."""

from __future__ import annotations

from deepinfer.verify.faults.edit import Edit
from deepinfer.verify.faults.fault import Fault
from deepinfer.verify.faults.step_faults import STEP_FAULTS


def _fault(
    name: str,
    about: str,
    place: str,
    old: str,
    new: str,
    check: str,
    ops: tuple[str, ...] = (),
    tensor: str = "",
) -> Fault:
    module, _, function = place.partition(":")
    edit = Edit(module=module, function=function, old=old, new=new)
    return Fault(name=name, about=about, edits=(edit,), check=check, ops=ops, tensor=tensor)


CACHE_FAULTS = (
    _fault(
        "ring-restored-off-by-one",
        "a resumed window is put back one place too far",
        "engine.cache.snapshots:Snapshot.restore",
        "positions % pool.per_group",
        "(positions + 1) % pool.per_group",
        "prefix",
        ("sparse_attention",),
        "in window",
    ),
    _fault(
        "ring-of-a-layer-not-restored",
        "one layer keeps the stale ring of the slot's last owner",
        "engine.cache.snapshots:Snapshot.restore",
        "self.rings.items():",
        "list(self.rings.items())[1:]:",
        "prefix",
        ("sparse_attention",),
        "in window",
    ),
    _fault(
        "hit-claims-the-next-token",
        "a prefix hit counts one token that was never computed",
        "engine.prefixes:Prefixes.resume",
        "sequence.num_computed = match.num_tokens",
        "sequence.num_computed = match.num_tokens + 1",
        "prefix",
        ("sparse_attention",),
        "in window",
    ),
    _fault(
        "preempted-keeps-progress",
        "caches are given away and still counted as computed",
        "engine.scheduler:Scheduler._drop",
        "sequence.num_computed = 0",
        "sequence.num_computed = max(0, sequence.num_computed - 1)",
        "preemption",
        ("sparse_attention",),
        "in window",
    ),
    _fault(
        "flipped-bit-in-a-scale",
        "one scale byte of a record is stored with its lowest bit set",
        "engine.cache.record_pool:RecordPool.store",
        "ops.store_records(self.bound(ops), values, rows)",
        "ops.store_records(self.bound(ops), values, rows)\n    self.scales[..., 5:6, :1] ^= 1",
        "packing",
        ("sparse_attention", "index_select"),
        "in ",
    ),
    _fault(
        "entries-of-the-wrong-neighbour",
        "compressed entries of all but the first sequence land one record early",
        "engine.step_records:plan_groups",
        "found.records[found.base[owner] + positions // ratio]",
        "found.records[found.base[owner] + np.maximum(positions // ratio - (owner > 0), 0)]",
        "batch",
        ("index_select", "sparse_attention"),
        "in ",
    ),
    _fault(
        "chosen-entries-off-by-one",
        "decoding reads the compressed entry before the chosen one",
        "engine.cache.step_view:StepView._read_main",
        "records[places]",
        "records[(places - 1).clamp(min=0)]",
        "decode",
        ("sparse_attention",),
        "in main",
    ),
    _fault(
        "pending-group-of-slot-zero",
        "an incomplete group is finished with another request's first half",
        "engine.step_records:plan_groups",
        "half_records(slots[owner]",
        "half_records(slots[owner] * 0",
        "batch",
        ("pool_pairs",),
        "in values",
    ),
)

PLAN_FAULTS = (
    _fault(
        "padding-row-in-the-rings",
        "a row that fills a turn up overwrites a latent of slot 0",
        "kernels.turn_chains:_ring_records",
        "rows.positions % ring, -1)",
        "rows.positions % ring, 3)",
        "graphs",
    ),
    _fault(
        "recorded-window-of-the-step",
        "windows of a turn begin one place late in the history",
        "kernels.turn_chains:_windows",
        "rows.owner * margin + margin - first",
        "rows.owner * margin + margin - first + 1",
        "graphs",
    ),
    _fault(
        "decode-window-one-short",
        "a row that comes alone sees one token less",
        "engine.prefill:PrefillRule.encoder_window_low",
        "positions - self.window + 1",
        "positions - self.window + 1 + (len(positions) == 1)",
        "decode",
        ("sparse_attention",),
        "in window",
    ),
    _fault(
        "window-of-the-step",
        "a chunk does not look back at the chunk before it",
        "engine.step_plan:_plan_rows",
        "oldest[with_rows] = np.minimum(first[with_rows], low[offset[with_rows]])",
        "low = np.maximum(low, first[owner])",
        "chunks",
        ("sparse_attention",),
        "in window",
    ),
    _fault(
        "history-of-the-neighbour",
        "an n-gram at the start of a sequence reaches into the one packed before it",
        "engine.step_plan:_recent",
        "near = np.full(len(owner) + margin * len(chunks), -1, np.int64)",
        "near = np.full(len(owner) + margin * len(chunks), 7 if len(chunks) > 1 else -1, np.int64)",
        "batch",
        ("engram_rows", "linear", "engram_gate"),
    ),
    _fault(
        "index-keys-of-the-first-sequence",
        "every query selects among the entries of the first sequence",
        "engine.step_plan:StepPlan.entries",
        "base=_starts(counts))",
        "base=_starts(counts) * 0)",
        "batch",
        ("index_select", "sparse_attention"),
        "in ",
    ),
    _fault(
        "mask-leaks-one-token",
        "the masked window reaches one token before the kept rows",
        "engine.prefill:PrefillRule.decoder_window_low",
        "np.maximum(positions - self.window + 1, low)",
        "np.maximum(positions - self.window + 1, np.maximum(low - (self.mode is PrefillMode.MASK), 0))",
        "yoco-logprobs",
        ("sparse_attention",),
        "in window",
    ),
    _fault(
        "kept-rows-by-chunk",
        "the kept rectangle is that of a chunk instead of the prompt",
        "engine.step_plan:plan_step",
        "first = rule.decoder_starts(packed.start, packed.end, packed.prompt_length)",
        "first = rule.decoder_starts(packed.start, packed.end, packed.end)",
        "yoco-metadata",
    ),
    _fault(
        "draft-context-by-row",
        "the context of a draft is rotated by the row of the step instead of the position",
        "engine.model.draft:Draft.write_context",
        "rope.at(rows.positions)",
        "rope.at(rows.positions - rows.positions[0])",
        "yoco-confidence",
        ("rotate_",),
        "in positions",
    ),
    _fault(
        "threads-drop-a-part",
        "the last part of a split call is computed from the first row of the part before",
        "kernels.cpu.workers:_begin",
        "body(cuts[part], cuts[part + 1])",
        "body(cuts[part], cuts[part + 1] - (part == len(cuts) - 2))",
        "threads",
        (),
    ),
)

SAMPLING_FAULTS = (
    _fault(
        "draw-keyed-by-row",
        "random words depend on the row of the batch",
        "engine.sampler:_words",
        "np.array([seeds[row] for row in drawn], np.uint64)",
        "np.array([(seeds[row] + row) % 2**64 for row in drawn], np.uint64)",
        "seeds",
        ("sample",),
        "in words",
    ),
    _fault(
        "draw-from-a-shared-stream",
        "one unseeded neighbour makes everyone draw from a stream of the process",
        "engine.sampler:_words",
        "words[drawn] = random_words(",
        "words[drawn] = np.random.default_rng().integers(0, 2**32, (len(drawn), NUM_WORDS)) "
        "if any(p.seed is None for p in params) else random_words(",
        "seeds",
        ("sample",),
        "in words",
    ),
    _fault(
        "position-of-the-prompt",
        "every draw uses the words of the first generated position of the batch",
        "engine.sampler:_words",
        "np.array([positions[row] for row in drawn], np.int64)",
        "np.array([positions[0] for row in drawn], np.int64)",
        "seeds",
        ("sample",),
        "in words",
    ),
    _fault(
        "temperature-of-the-first-row",
        "all rows are sampled with the parameters of the first one",
        "engine.sampler:draw_rows",
        "[p.temperature for p in params]",
        "[p.temperature * (1 + row) for row, p in enumerate(params)]",
        "seeds",
        ("sample",),
        "in temperature",
    ),
)

VALUE_FAULTS = (
    _fault(
        "infinite-logit",
        "one logit overflows",
        "engine.model.transformer:Transformer.logits",
        "return self.ops.linear_fp32(normed, self.head)",
        "out = self.ops.linear_fp32(normed, self.head)\n    out[-1, 3] = float('inf')\n    return out",
        "nonfinite",
    ),
    _fault(
        "norm-without-its-last-channel",
        "the mean square divides by one channel too few, for every row alike",
        "kernels.cpu.norms:rms_norm_kernel",
        "width = np.float32(x.shape[1])",
        "width = np.float32(x.shape[1] - 1)",
        "reference",
    ),
    _fault(
        "process-keyed",
        "an answer depends on the hash seed of the process",
        "engine.model.transformer:Transformer.logits",
        "return self.ops.linear_fp32(normed, self.head)",
        "import os\n"
        "    out = self.ops.linear_fp32(normed, self.head)\n"
        "    return out + float(os.environ.get('PYTHONHASHSEED') == '4242')",
        "process",
    ),
    _fault(
        "router-ties-to-the-higher-expert",
        "no two router scores of the bundled texts are equal, so no run can tell the tie rules apart; "
        "tests/kernels covers ties with made-up scores",
        "kernels.cpu.router:route_kernel",
        "scores[e] + bias[e] > scores[best]",
        "scores[e] + bias[e] >= scores[best]",
        "",
    ),
    _fault(
        "two-experts-in-descending-order",
        "0 + a + b and 0 + b + a are the same float, and this model routes to two experts: no bit moves",
        "kernels.cpu.experts:combine_kernel",
        "part = routed[place[row, i]]",
        "part = routed[place[row, place.shape[1] - 1 - i]]",
        "",
    ),
)

ENGINE_FAULTS = (*CACHE_FAULTS, *PLAN_FAULTS, *SAMPLING_FAULTS, *STEP_FAULTS, *VALUE_FAULTS)
