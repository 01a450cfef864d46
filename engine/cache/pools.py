"""Cache pools.

One float32 row per token and layer, or per compressed entry, holding what the records decode to.

Round trips through the record formats return values that float32 holds exactly, so keeping the decoded row is
interchangeable with keeping the record (model.md section 8). A sequence owns a contiguous run of rows.
"""

from __future__ import annotations

import torch

from deepinfer.engine.model_config import ModelConfig


class CachePools:
    """Window latents of every layer, compressed latents and index keys of KV sources, compressor state."""

    def __init__(self, config: ModelConfig, num_tokens: int, num_sequences: int, with_draft: bool) -> None:
        """Allocate for ``num_tokens`` rows (a multiple of 2 per sequence) and ``num_sequences`` sequences."""
        width = config.head_dim
        self.window = [torch.zeros(num_tokens, width) for _ in range(config.num_hidden_layers)]
        self.draft_window = [
            torch.zeros(num_tokens, width)
            for _ in range(config.num_nextn_predict_layers if with_draft else 0)
        ]
        self.main: dict[int, torch.Tensor] = {}
        self.index_keys: dict[int, torch.Tensor] = {}
        self.pending: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for layer in config.kv_source_layer_ids:
            ratio = config.compress_ratio(layer)
            self.main[layer] = torch.zeros(num_tokens // ratio, width)
            self.index_keys[layer] = torch.zeros(num_tokens // ratio, config.index_head_dim)
            if ratio == 2:
                # fp32 value and score of the last token of an incomplete group, one per sequence
                self.pending[layer] = (torch.zeros(num_sequences, width), torch.zeros(num_sequences, width))
