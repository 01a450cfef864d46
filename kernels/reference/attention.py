"""Sparse attention in plain torch (model.md section 3.6): gather the keys of each row, one softmax over
them."""

from __future__ import annotations

import torch

from deepinfer.kernels.reference.rounding import to_bf16
from deepinfer.kernels.reference.tiles import row_tiles


def attention(
    q_thc: torch.Tensor,
    window_pc: torch.Tensor,
    window_slots_tw: torch.Tensor,
    main_pc: torch.Tensor,
    main_slots_tk: torch.Tensor,
    sink_h: torch.Tensor,
    bf16: bool,
) -> torch.Tensor:
    """See ``Ops.sparse_attention``; ``bf16`` rounds the probabilities before the product with the values.

    The sink is one more key: a zero vector, whose mask is the sink logit.
    """
    num_rows, num_heads, width = q_thc.shape
    pool_pc = torch.cat([window_pc, main_pc, window_pc.new_zeros(1, width)])
    zero_row = len(pool_pc) - 1
    slots_ts = torch.cat(
        [
            torch.where(window_slots_tw >= 0, window_slots_tw, zero_row),
            torch.where(main_slots_tk >= 0, main_slots_tk + len(window_pc), zero_row),
            torch.full((num_rows, 1), zero_row),
        ],
        1,
    )
    num_slots = slots_ts.shape[1]
    absent_t1s = (slots_ts == zero_row)[:, None]
    mask_ths = torch.zeros(num_rows, num_heads, num_slots).masked_fill_(absent_t1s, float("-inf"))
    mask_ths[..., -1] = sink_h
    out_thc, gathered = torch.empty_like(q_thc), torch.empty(0)
    for tile in row_tiles(num_rows, num_slots * width):
        picked = slots_ts[tile].flatten()
        gathered = torch.index_select(pool_pc, 0, picked, out=gathered.resize_(len(picked), width))
        keys_tsc = gathered.view(-1, num_slots, width)
        z_ths = torch.baddbmm(mask_ths[tile], q_thc[tile], keys_tsc.transpose(1, 2), alpha=width**-0.5)
        p_ths = _rounded_softmax(z_ths) if bf16 else z_ths.softmax(-1)
        torch.bmm(p_ths, keys_tsc, out=out_thc[tile])
    return out_thc


def _rounded_softmax(z_ths: torch.Tensor) -> torch.Tensor:
    """Softmax with ``exp(z - M)`` rounded to bfloat16 above an exact divisor; M is the largest key's."""
    largest_th1 = z_ths[..., :-1].amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
    p_ths = z_ths.sub_(largest_th1).exp_()
    return to_bf16(p_ths, True).div_(p_ths.sum(-1, keepdim=True))
