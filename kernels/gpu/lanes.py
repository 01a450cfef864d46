"""Cache codes to bfloat16, two at a time: 32-bit words as two lanes of 16 bits.

A four-bit or eight-bit float whose sign, exponent and mantissa are moved to the places a bfloat16 has them
is the value times a fixed power of two, subnormals included, because both formats count them alike. One
exact multiplication of both lanes puts the exponent right and applies the scale. Channels come out as
planes: plane j holds channels 4 * i + j, so that no value changes its lane; a product over channels does
not care, as long as both sides are cut the same way.

Decoded values are 2**-32 of what the record says, where no scale overflows; ``LIFT`` undoes it elsewhere,
exactly.

Legend: J records, C channels of a record, X words.
"""

from __future__ import annotations

import triton.language as tl

from deepinfer.kernels.gpu.elementary import bits_of
from deepinfer.kernels.gpu.launching import Block, device

LIFT: tl.constexpr = tl.constexpr(2.0**32)
_FOUR_BITS: tl.constexpr = tl.constexpr(126 - 32)
_EIGHT_BITS: tl.constexpr = tl.constexpr(120 - 32)


@device
def times(lanes: Block, factors: Block) -> Block:
    """Product of the two bfloat16 lanes of int32 words with those of another word."""
    return tl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $3;",
        "=r,r,r,r",
        [lanes, factors, lanes * 0 - 0x7FFF8000],  # plus -0 in both lanes
        tl.int32,
        is_pure=True,
        pack=1,
    )


@device
def half_of(lanes: Block) -> Block:
    """The bfloat16 in the low lane of int32 words."""
    return (lanes & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)


@device
def both_of(lanes: Block) -> Block:
    """The bfloat16 of both lanes of words [J, X], low first: [J, 2 X]."""
    return tl.join(half_of(lanes), half_of(lanes >> 16)).reshape(lanes.shape[0], lanes.shape[1] * 2)


@device
def spread(factors: Block, TIMES: tl.constexpr) -> Block:
    """[J, G] -> [J, G * TIMES]: every factor ``TIMES`` times."""
    wide = tl.broadcast_to(factors[:, :, None], (factors.shape[0], factors.shape[1], TIMES))
    return wide.reshape(factors.shape[0], factors.shape[1] * TIMES)


@device
def doubled(pattern: Block) -> Block:
    """A bfloat16 pattern in both lanes."""
    return pattern | (pattern << 16)


@device
def _power_factors(scales: Block, SHIFT: tl.constexpr) -> Block:
    """e8m0 bytes as factors 2**(scale - 127 + SHIFT); 255 is NaN."""
    wide = scales.to(tl.int32)
    return doubled(tl.where(wide == 255, 0x7FC0, tl.minimum(wide + SHIFT, 254) << 7))


@device
def mxfp4_factors(scales: Block) -> Block:
    """Factors of MXFP4 groups from their e8m0 bytes."""
    return _power_factors(scales, _FOUR_BITS)


@device
def mxfp8_factors(scales: Block) -> Block:
    """Factors of MXFP8 groups from their e8m0 bytes."""
    return _power_factors(scales, _EIGHT_BITS)


@device
def fp4_factors(scales: Block) -> Block:
    """Factors of FP4 groups from their e4m3 bytes, which have no sign; 127 is NaN."""
    wide = scales.to(tl.int32) & 127
    tiny = bits_of(wide.to(tl.float32) * 2.0**85) >> 16  # times 2**-9 and 2**94
    pattern = tl.where(wide < 8, tiny, (wide << 4) + (214 << 7))
    return doubled(tl.where(wide == 127, 0x7FC0, pattern))


@device
def plane_e2m1(words: Block, factors: Block, PLANE: tl.constexpr) -> Block:
    """Plane of words [J, C / 8] with eight codes each, and as many factors: bfloat16 [J, C / 4]."""
    if PLANE == 0:
        lanes = ((words << 12) & -0x7FFF8000) | ((words << 6) & 0x01C001C0)
    elif PLANE == 1:
        lanes = ((words << 8) & -0x7FFF8000) | ((words << 2) & 0x01C001C0)
    elif PLANE == 2:
        lanes = ((words << 4) & -0x7FFF8000) | ((words >> 2) & 0x01C001C0)
    else:
        lanes = (words & -0x7FFF8000) | ((words >> 6) & 0x01C001C0)
    return both_of(times(lanes, factors))


@device
def planes_e4m3(words: Block, factors: Block, ODD: tl.constexpr) -> tuple[Block, Block]:
    """Planes 0 and 2, or 1 and 3, of words [J, C / 4] with four codes each: bfloat16 [J, C / 4]."""
    if ODD:
        lanes = (words & -0x7FFF8000) | ((words >> 4) & 0x07F007F0)
    else:
        lanes = ((words << 8) & -0x7FFF8000) | ((words << 4) & 0x07F007F0)
    product = times(lanes, factors)
    return half_of(product), half_of(product >> 16)
