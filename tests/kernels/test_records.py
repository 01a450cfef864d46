"""Packed cache records: the bytes of ``engine.formats``, in any layout, for any company of a row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.engine import formats
from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.interface import Ops

BLOCKS, SLOTS, WIDTH = 3, 8, 128
SIZES = {  # data bytes and scale bytes of a record of 128 channels
    "mxfp8": (128, 4),
    "mxfp4": (64, 4),
    "fp4": (64, 8),
    "exact": (512, 0),
}
QUANTISED = ["mxfp8", "mxfp4", "fp4"]
PACK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mxfp8": formats.pack_mxfp8,
    "mxfp4": formats.pack_mxfp4,
    "fp4": formats.pack_fp4_e4m3,
}
UNPACK: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "mxfp8": formats.unpack_mxfp8,
    "mxfp4": formats.unpack_mxfp4,
    "fp4": formats.unpack_fp4_e4m3,
}
Views = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """Both kernel sets; records do not depend on the profile."""
    return select_ops(request.param, bf16=False, num_threads=1)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def interleaved(kind: str, blocks: int = BLOCKS, slots: int = SLOTS, fill: int = 0xA5) -> Views:
    """Buffer [B, S, d + s] and its views: scales follow the data of each record."""
    num_bytes, num_scales = SIZES[kind]
    buffer = torch.full((blocks, slots, num_bytes + num_scales), fill, dtype=torch.uint8)
    return buffer, buffer[..., :num_bytes], buffer[..., num_bytes:]


def sectioned(kind: str, blocks: int = BLOCKS, slots: int = SLOTS, fill: int = 0xA5) -> Views:
    """Buffer [B, S * d + S * s + 3] and its views: all data of a block, all its scales, bytes of others."""
    num_bytes, num_scales = SIZES[kind]
    buffer = torch.full((blocks, slots * (num_bytes + num_scales) + 3), fill, dtype=torch.uint8)
    cut = slots * num_bytes
    data = buffer[:, :cut].unflatten(1, (slots, num_bytes))
    return buffer, data, buffer[:, cut : cut + slots * num_scales].unflatten(1, (slots, num_scales))


LAYOUTS = pytest.mark.parametrize("layout", [interleaved, sectioned])


def varied(num_rows: int, seed: int = 5) -> torch.Tensor:
    """Rows over the whole float32 range: each group has a magnitude of its own, some hold zeros, ties, -0."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-149, 126, (num_rows, WIDTH // 16, 1), generator=generator)
    common = torch.randint(-12, 6, powers.shape, generator=generator)
    powers = torch.where(torch.rand(powers.shape, generator=generator) < 0.3, powers, common)
    near = torch.randn(num_rows, WIDTH // 16, 16, generator=generator)
    ties = torch.randint(-48, 49, near.shape, generator=generator) / 8.0
    values = torch.where(torch.rand(powers.shape, generator=generator) < 0.5, near, ties)
    values = (values.double() * 2.0**powers).float()
    values[::5, 3] = 0.0
    values[::7, 4, ::3] = -0.0
    assert values.isfinite().all()
    return values.flatten(1)


def stored(ops: Ops, kind: str, values: torch.Tensor) -> torch.Tensor:
    """Records [T, d + s] of the rows of ``values``."""
    buffer, data, scales = interleaved(kind, 1, len(values))
    ops.store_records(ops.bind_records(kind, WIDTH, data, scales), values, torch.arange(len(values)))
    return buffer[0]


def loaded(ops: Ops, kind: str, records: torch.Tensor) -> torch.Tensor:
    """Values [n, 128] of records [n, d + s]."""
    data, scales = records[None, :, : SIZES[kind][0]], records[None, :, SIZES[kind][0] :]
    return ops.load_records(ops.bind_records(kind, WIDTH, data, scales), torch.arange(len(records)))


@pytest.mark.parametrize("kind", QUANTISED)
def test_bytes_and_values_are_those_of_the_formats(ops: Ops, kind: str) -> None:
    values = varied(600)
    records = stored(ops, kind, values)
    assert torch.equal(records, PACK[kind](values))
    back = loaded(ops, kind, records)
    assert same_bits(back, UNPACK[kind](records, WIDTH))
    round_trip = {"mxfp8": ops.mxfp8_, "mxfp4": ops.mxfp4_, "fp4": ops.fp4_}[kind]
    assert same_bits(back, round_trip(values.clone()))


@LAYOUTS
@pytest.mark.parametrize("kind", SIZES)
def test_only_the_named_records_change(ops: Ops, kind: str, layout: Callable[..., Views]) -> None:
    values, rows = varied(6), torch.tensor([23, -1, 0, 8, -1, 13])
    buffer, data, scales = layout(kind)
    untouched = buffer.clone()
    ops.store_records(ops.bind_records(kind, WIDTH, data, scales), values, rows)
    expected = stored(ops, kind, values)
    flat_data, flat_scales = data.flatten(0, 1), scales.flatten(0, 1)
    for t, row in enumerate(rows.tolist()):
        if row >= 0:
            assert torch.equal(torch.cat([flat_data[row], flat_scales[row]]), expected[t])
            data[row // SLOTS, row % SLOTS] = 0xA5
            scales[row // SLOTS, row % SLOTS] = 0xA5
    assert torch.equal(buffer, untouched), "a byte outside the four records changed"


@LAYOUTS
@pytest.mark.parametrize("kind", SIZES)
def test_loading_in_any_order_and_minus_one_as_zeros(
    ops: Ops, kind: str, layout: Callable[..., Views]
) -> None:
    values = varied(BLOCKS * SLOTS)
    _, data, scales = layout(kind)
    ops.store_records(
        ops.bind_records(kind, WIDTH, data, scales), values, torch.arange(BLOCKS * SLOTS).flip(0)
    )
    rows = torch.tensor([5, 23, -1, 5, 0, 16, -1])
    out = ops.load_records(ops.bind_records(kind, WIDTH, data, scales), rows)
    expected = loaded(ops, kind, stored(ops, kind, values.flip(0)))[rows]
    expected[rows < 0] = 0.0
    assert same_bits(out, expected)
    assert ops.load_records(ops.bind_records(kind, WIDTH, data, scales), rows[:0]).shape == (0, WIDTH)


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_byte_decodes(ops: Ops, kind: str) -> None:
    """All data bytes under all usable scale bytes: 1 to 254 of e8m0, 1 to 126 of e4m3."""
    num_bytes, num_scales = SIZES[kind]
    usable = torch.arange(1, 127 if kind == "fp4" else 255, dtype=torch.uint8)
    codes = torch.arange(256, dtype=torch.int32)
    if kind == "mxfp8":
        codes[127], codes[255] = 0, 0  # NaN codes never occur
    chunks = codes.to(torch.uint8).view(-1, num_bytes)
    data = chunks.repeat(len(usable), 1)
    scales = usable.repeat_interleave(len(chunks))[:, None].expand(-1, num_scales)
    records = torch.cat([data, scales], 1)
    back = loaded(ops, kind, records)
    assert same_bits(back, UNPACK[kind](records, WIDTH))


def test_exact_keeps_every_bit(ops: Ops) -> None:
    generator = torch.Generator().manual_seed(8)
    bits = torch.randint(-(2**31), 2**31, (40, WIDTH), generator=generator).to(torch.int32)
    bits[0, :5] = torch.tensor([0x7FC00123, 0x7F800001, -0x80000000, -0x3FEDCC, 0x7F800000])
    values = bits.view(torch.float32)
    records = stored(ops, "exact", values)
    assert torch.equal(records, bits.view(torch.uint8)), "little-endian float32"
    assert torch.equal(loaded(ops, "exact", records).view(torch.int32), bits)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_group_that_is_not_finite_is_read_back_as_nan(ops: Ops, kind: str, bad: float) -> None:
    values = varied(2)
    clean = loaded(ops, kind, stored(ops, kind, values))
    values[1, 70] = bad
    back = loaded(ops, kind, stored(ops, kind, values))
    low, high = (64, 80) if kind == "fp4" else (64, 96)
    assert back[1, low:high].isnan().all()
    back[1, low:high] = clean[1, low:high]
    assert same_bits(back, clean)


@pytest.mark.parametrize("kind", SIZES)
def test_a_row_does_not_depend_on_its_company_or_on_threads(kind: str) -> None:
    one, two = (select_ops("cpu", bf16=False, num_threads=n) for n in (1, 2))
    values = varied(513)
    records = stored(one, kind, values)
    assert torch.equal(stored(two, kind, values), records)
    back = loaded(one, kind, records)
    assert same_bits(loaded(two, kind, records), back)
    for t in (0, 1, 255, 256, 512):
        assert torch.equal(stored(two, kind, values[t : t + 1])[0], records[t])
        assert same_bits(loaded(two, kind, records[t : t + 1])[0], back[t])
    strided = torch.stack([values, -values], 2)[..., 0]
    assert not strided.is_contiguous()
    assert torch.equal(stored(two, kind, strided), records)


def largest_code(kind: str, records: torch.Tensor) -> torch.Tensor:
    """Largest magnitude code of each group [T, G]."""
    data = records[:, : SIZES[kind][0]]
    codes = data & 127 if kind == "mxfp8" else torch.stack((data & 7, (data >> 4) & 7), -1).flatten(1)
    return codes.unflatten(1, (SIZES[kind][1], -1)).amax(-1)


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4"])
def test_storing_a_loaded_row_again_changes_no_value(ops: Ops, kind: str) -> None:
    """Nor any byte, but for groups whose largest value is half the range: those may double their codes."""
    first = stored(ops, kind, varied(600))
    back = loaded(ops, kind, first)
    second = stored(ops, kind, back)
    assert same_bits(loaded(ops, kind, second), back)
    assert torch.equal(stored(ops, kind, loaded(ops, kind, second)), second)
    half = {"mxfp8": 0x76, "mxfp4": 5}[kind]  # 224 of 448, 3 of 6
    moved = largest_code(kind, first) == half
    first_scales, second_scales = first[:, SIZES[kind][0] :], second[:, SIZES[kind][0] :]
    assert torch.equal(first_scales[~moved], second_scales[~moved])
    assert (first_scales != second_scales).any(), "the case never came up"


def test_storing_a_loaded_fp4_row_again_changes_no_byte_but_at_scale_two(ops: Ops) -> None:
    """Scales below 2**-6 are coarse: with scale 2**-8 a group may have 4 as its largest code and shrink."""
    first = stored(ops, "fp4", varied(600))
    second = stored(ops, "fp4", loaded(ops, "fp4", first))
    differs = first[:, 64:] != second[:, 64:]
    assert (first[:, 64:][differs] == 2).all()
    rows = ~(first[:, 64:] == 2).any(1)
    assert rows.sum() > 100
    assert torch.equal(first[rows], second[rows])
    known = torch.zeros(1, WIDTH)
    known[0, 0] = 9.5 * 2.0**-9
    once = loaded(ops, "fp4", stored(ops, "fp4", known))
    twice = loaded(ops, "fp4", stored(ops, "fp4", once))
    assert (once[0, 0].item(), twice[0, 0].item()) == (8 * 2.0**-9, 6 * 2.0**-9)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("row", [-2, BLOCKS * SLOTS])
def test_rows_outside_are_refused(ops: Ops, kind: str, row: int) -> None:
    _, data, scales = interleaved(kind)
    with pytest.raises(ValueError, match="1 rows are neither -1 nor one of the 24 records"):
        ops.load_records(ops.bind_records(kind, WIDTH, data, scales), torch.tensor([0, row]))
    with pytest.raises(ValueError, match="neither -1 nor"):
        ops.store_records(ops.bind_records(kind, WIDTH, data, scales), varied(2), torch.tensor([0, row]))


def test_buffers_of_another_shape_are_refused() -> None:
    cpu = select_ops("cpu", bf16=False, num_threads=1)
    _, data, scales = interleaved("mxfp4")
    with pytest.raises(ValueError, match="unknown kind 'int8'"):
        cpu.bind_records("int8", WIDTH, data, scales)
    with pytest.raises(ValueError, match=r"mxfp8 of width 128 .* uint8 data \[B, S, 128\]"):
        cpu.bind_records("mxfp8", WIDTH, data, scales)
    with pytest.raises(ValueError, match="a multiple of 32"):
        cpu.bind_records("mxfp4", 136, data, scales)
    with pytest.raises(ValueError, match="last axes contiguous"):
        cpu.bind_records("mxfp4", WIDTH, data.transpose(1, 2).contiguous().transpose(1, 2), scales)
    bound, rows = cpu.bind_records("mxfp4", WIDTH, data, scales), torch.arange(2)
    with pytest.raises(ValueError, match="must be int64"):
        cpu.load_records(bound, rows.to(torch.int32))
    with pytest.raises(ValueError, match=r"needs contiguous \[2, 128\]"):
        cpu.load_records(bound, rows, torch.empty(3, WIDTH))
    with pytest.raises(ValueError, match="2 rows for"):
        cpu.store_records(bound, varied(3), rows)
