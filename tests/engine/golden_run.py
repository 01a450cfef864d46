"""Runs a handed sequence and names its tensors as the reference outputs do."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from deepinfer.engine.api import PrefillMode
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model.draft import Anchors, Draft
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import prefill_rule
from deepinfer.engine.runner import Wave
from deepinfer.kernels.dispatch import select_ops


class GoldenRun:
    """A model bound to one variant of the reference outputs (``fp32_noq``, ``fp32_q``, ``bf16_q``)."""

    def __init__(self, checkpoint: Checkpoint, variant: str, kernel_set: str = "cpu") -> None:
        """Load the backbone and the draft."""
        ops = select_ops(
            kernel_set,
            bf16=variant.startswith("bf16"),
            round_caches=not variant.endswith("noq"),
            num_threads=2,
        )
        self.config = checkpoint.config
        self.model = Transformer(checkpoint, ops)
        self.draft = Draft(checkpoint, self.model)

    def arrays(self, input_ids: torch.Tensor, anchors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Every array this engine has under its name in the reference outputs.

        Args:
            input_ids: [S].
            anchors: ``positions`` and ``tokens`` [A] of the drafted blocks; empty for none.
        """
        seen: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)

        def probe(name: str, layer: int, value: torch.Tensor) -> None:
            seen[name][layer] = value.clone()

        wave = Wave(
            self.model,
            self.draft,
            prefill_rule(self.config, PrefillMode.OFF, None),
            [input_ids.numpy().astype("int64")],
        )
        (rows,) = wave.run(len(input_ids), probe=probe)
        found = self._backbone(seen, self.model.logits(rows.normed))
        found["dspark_target_features_last"] = seen["features"][-1][-1]
        if anchors:
            found |= self._drafted(anchors, wave.caches, seen, probe)
        return found

    def _backbone(self, seen: Any, logits: torch.Tensor) -> dict[str, torch.Tensor]:
        layers = range(self.config.num_hidden_layers)
        streams = torch.stack([seen["block_in"][layer] for layer in range(len(layers) + 1)])
        pre = torch.stack([seen["pre_mix"][layer] for layer in range(len(layers) + 1)])
        found = {
            "logits": logits,
            "logits_tail": logits[-32:],
            "argmax": logits.argmax(1),
            "logsumexp": logits.logsumexp(1),
            "final_norm_last": seen["final_norm"][len(layers)][-1],
            "streams_full": streams,
            "pre_mix_full": pre,
            "streams_last8": streams[:, -1, :, :8],
            "streams_mean": streams.mean((1, 2, 3)),
            "streams_std": streams.std((1, 2, 3), correction=0),
            "streams_rms_per_position": streams.square().mean((2, 3)).sqrt(),
            "router_indices": torch.stack([seen["router_ids"][layer] for layer in layers]),
            "router_weights": torch.stack([seen["router_weights"][layer] for layer in layers]),
            "window_kv_last": torch.stack([seen["window_kv"][layer][-1] for layer in layers]),
            "engram_rows": torch.stack(
                [seen["engram_rows"][layer] for layer in self.config.engram_layer_ids]
            ),
        }
        for name in ("attn_in", "attn_out", "ffn_out"):
            values = torch.stack([seen[name][layer] for layer in layers])
            found[f"{name}_last8"] = values[:, -1, :8]
            found[f"{name}_rms_per_position"] = values.square().mean(2).sqrt()
        for site in ("attn", "ffn"):
            for part in ("pre", "post", "comb"):
                name = f"hc_{site}_{part}"
                found[f"{name}_last"] = torch.stack([seen[name][layer][-1] for layer in layers])
        for layer, entries in seen["index_topk"].items():
            found[f"index_topk.layer{layer}"] = entries
            found[f"index_query_last.layer{layer}"] = seen["index_query"][layer][-1]
        for layer in seen["compressed_kv"]:
            found[f"compressed_kv_last.layer{layer}"] = seen["compressed_kv"][layer][-1]
            found[f"index_key_last.layer{layer}"] = seen["index_key"][layer][-1]
        for layer, blocks in seen["candidate_blocks"].items():
            size = self.config.candidate_block_size
            kept = torch.zeros(len(blocks), -(-len(blocks) // size) + 1, dtype=torch.uint8)
            kept.scatter_(1, torch.where(blocks >= 0, blocks, kept.shape[1] - 1).long(), 1)
            found[f"candidate_blocks.layer{layer}"] = kept[:, :-1]
        return found

    def _drafted(self, anchors: Any, caches: Caches, seen: Any, probe: Any) -> dict[str, torch.Tensor]:
        tokens, positions = anchors["tokens"].long(), anchors["positions"].long()
        zero = torch.zeros_like(positions)
        output = self.draft.propose(Anchors(tokens, positions, zero, zero), caches, probe)()
        blocks = output.tokens.shape[0], self.config.dspark_block_size
        stages = [
            seen["draft_streams"][-1 - stage].unflatten(0, blocks)[..., :4]
            for stage in range(self.config.num_nextn_predict_layers)
        ]
        return {
            "dspark_base_logits": output.base_logits,
            "dspark_logits": output.logits,
            "dspark_tokens": output.tokens,
            "dspark_confidence_raw": output.confidence_logits,
            "dspark_hidden_raw_first8": seen["draft_hidden"][-1].unflatten(0, blocks)[..., :8],
            "dspark_stage_streams_first4": torch.stack(stages),
        }
