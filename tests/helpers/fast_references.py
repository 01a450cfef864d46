"""What the fast device ops are held against: float64 on decoded values, and a device or the interpreter to
run on.

Legend: T rows, E experts, N outputs, K inputs, H heads, C channels, L entries.
"""

from __future__ import annotations

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm of ``wanted``; infinite if anything is no number."""
    found, wanted = found.double(), wanted.double()
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((found - wanted).norm() / wanted.norm())


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bfloat16, as float64."""
    return x.float().to(torch.bfloat16).double()


def random_mxfp4(generator: torch.Generator, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., K / 2] and scales uint8 [..., K / 32] of a random weight of about unit variance /
    40.
    """
    *lead, depth = shape
    codes = torch.randint(0, 256, (*lead, depth // 2), generator=generator, device=generator.device)
    scales = torch.randint(118, 122, (*lead, depth // 32), generator=generator, device=generator.device)
    return codes.to(torch.uint8), scales.to(torch.uint8)


def decode_mxfp4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [..., K]."""
    table = torch.tensor(E2M1 + tuple(-v for v in E2M1), device=codes.device)
    values = table[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()]
    return values * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)


def expert_outputs(
    x: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inner and outer values of every pair in float64, with the roundings of profile fast."""
    rows = x.double().repeat_interleave(ids.shape[1], 0)
    flat = ids.flatten()
    g = bf16(torch.einsum("pd,pid->pi", rows, gate[flat].double()))
    u = bf16(torch.einsum("pd,pid->pi", rows, up[flat].double()))
    g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    h = bf16(g / (1 + torch.exp(-g)) * u * shares.flatten().double()[:, None])
    return h, bf16(torch.einsum("pi,pdi->pd", h, down[flat].double()))


def attention(
    q: torch.Tensor,
    near: torch.Tensor,
    near_slots: torch.Tensor,
    far: torch.Tensor,
    far_slots: torch.Tensor,
    sink: torch.Tensor,
) -> torch.Tensor:
    """float64 [T, H, C] over decoded pools [P, C]."""
    keys = torch.cat((near[near_slots.clamp(min=0).long()], far[far_slots.clamp(min=0).long()]), 1).double()
    seen = torch.cat((near_slots >= 0, far_slots >= 0), 1)[:, None]
    z = torch.einsum("thc,tjc->thj", q.double(), keys) * q.shape[-1] ** -0.5
    z = torch.where(seen, z, -torch.inf)
    top = z.amax(-1, keepdim=True).clamp(min=-1e30)
    p = torch.where(seen, torch.exp(z - top), 0.0)
    den = p.sum(-1, keepdim=True) + torch.exp(sink.double()[None, :, None] - top)
    return torch.where(seen.any(-1, keepdim=True), torch.einsum("thj,tjc->thc", p, keys) / den, 0.0)


def index_scores(q: torch.Tensor, w: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """bfloat16 scores as float64 [T, L] of decoded keys [T, L, Ci], rounded as in training."""
    dots = bf16(torch.einsum("thc,tlc->thl", q.double(), keys.double()).clamp(min=0))
    return bf16(bf16(dots * w.double()[:, :, None]).sum(1))
