"""Quantised weights: bounds of the rounding error, and the C++ products against float64 ones."""

import pytest
import torch

from ringkv.kernels.formats import FORMATS, rows_of, unpack, unpack_gated
from ringkv.kernels.linear import gated, gated_reference, linear, reference
from tests.kernels.products import EPS, SHAPES, normalised, random_bf16

KINDS = ["int8", "int4"]
ROWS = [1, 3, 8, 16, 33, 520]
GROUP = 32


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_product_is_that_of_the_weights_as_stored(kind: str, rows: int, out: int, inner: int) -> None:
    x, weight, bias, norm, residual = (
        random_bf16(*shape) for shape in ((rows, inner), (out, inner), (out,), (inner,), (rows, out))
    )
    packed = FORMATS[kind].pack(weight)
    stored = unpack(packed).double()
    plain = linear(x, packed, dtype=torch.float32).double()
    wants = [x.double() @ way.T for way in (stored, stored.bfloat16().double())[: 1 + (kind == "int4")]]
    assert any(torch.allclose(plain, want, atol=1e-4 * inner**0.5, rtol=1e-5) for want in wants)
    want = normalised(x, norm) @ stored.T + bias.double() + residual.double()
    found = linear(x, packed, bias, norm, EPS, residual).double()
    torch.testing.assert_close(found, want, atol=0.01 * inner**0.5, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_gated_product_is_that_of_the_weights_as_stored(kind: str, rows: int, out: int, inner: int) -> None:
    x, weight, bias, norm = (random_bf16(*shape) for shape in ((rows, inner), (out, inner), (out,), (inner,)))
    packed = FORMATS[kind].pack_gated(weight / inner**0.5)
    gate, up = (normalised(x, norm) @ unpack_gated(packed).double().T + bias.double()).chunk(2, -1)
    want = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(gated(x, packed, bias, norm, EPS).double(), want, atol=0.03, rtol=2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_compiled_product_torch_gives_the_same(kind: str) -> None:
    x, weight, norm, residual = (random_bf16(*shape) for shape in ((5, 96), (64, 96), (96,), (5, 64)))
    packed, packed_gated = FORMATS[kind].pack(weight), FORMATS[kind].pack_gated(weight)
    found = reference(x, packed, None, norm, EPS, residual, torch.float32).double()
    want = normalised(x, norm) @ unpack(packed).double().T + residual.double()
    torch.testing.assert_close(found, want, atol=0.1, rtol=1e-2)
    gate, up = (normalised(x, norm) @ unpack(packed).double().T).chunk(2, -1)
    found = gated_reference(x, packed_gated, None, norm, EPS).double()
    torch.testing.assert_close(found, gate / (1 + (-gate).exp()) * up, atol=0.5, rtol=2e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("kind", "rows", "alone"), [("int8", 700, 1), ("int4", 700, 9), ("int4", 8, 1)])
def test_a_row_does_not_depend_on_the_others_bit_for_bit(kind: str, rows: int, alone: int) -> None:
    """int4 products of few rows use another kernel than those of many rows."""
    x, packed = random_bf16(rows, 1600), FORMATS[kind].pack(random_bf16(96, 1600))
    together = linear(x, packed)
    for row in (0, 3, 7, 31, 32, 511, 691):
        if row + alone <= rows:
            assert torch.equal(linear(x[row : row + alone], packed), together[row : row + alone])
    x[0] = float("nan")
    again = linear(x, packed)
    assert again[0].isnan().all()
    assert torch.equal(again[1:], together[1:])


def test_int8_is_off_by_half_a_step_at_most() -> None:
    weight = random_bf16(64, 160)
    step = weight.float().abs().amax(-1, keepdim=True) / 127
    error = (unpack(FORMATS["int8"].pack(weight)) - weight.float()).abs()
    assert (error <= 0.501 * step).all()
    assert error.square().mean().sqrt() < 0.3 * step.max()  # uniform errors: step / sqrt(12)


def test_int4_is_nearer_than_rounding_between_the_ends_of_each_group() -> None:
    weight = random_bf16(64, 160)
    groups = weight.float().view(64, -1, GROUP)
    minimum, maximum = torch.aminmax(groups, dim=-1, keepdim=True)
    step = (maximum - minimum) / 15
    plain = ((groups - minimum) / step).round() * step + minimum
    error = unpack(FORMATS["int4"].pack(weight)).float().view_as(groups) - groups
    assert error.square().mean() < (plain - groups).square().mean()
    assert (error.abs() < step).all()


def test_groups_of_a_q4_1_file_are_recovered() -> None:
    q = torch.randint(0, 16, (64, 5, GROUP)).float()
    q[:, :, 3], q[:, :, 17] = 0, 15  # such a file has the group's smallest and largest weight at the ends
    scale, minimum = torch.rand(64, 5, 1).half().float(), -torch.rand(64, 5, 1).half().float()
    weight = (q * scale + minimum).flatten(1)
    found = unpack(FORMATS["int4"].pack(weight.bfloat16())).float()
    worst = weight.abs().view(64, 5, GROUP).amax(-1, keepdim=True).expand(-1, -1, GROUP).flatten(1)
    assert ((found - weight).abs() <= worst * 2**-7).all()  # rounding to bfloat16, twice


@pytest.mark.parametrize("kind", KINDS)
def test_quantising_again_changes_weights_by_less_than_a_step(kind: str) -> None:
    once = unpack(FORMATS[kind].pack(random_bf16(96, 64))).bfloat16()
    again = unpack(FORMATS[kind].pack(once)).bfloat16()
    size = {"int8": 64, "int4": GROUP}[kind]  # weights that share a scale
    groups = once.float().view(-1, size)
    step = {"int8": groups.abs().amax(-1) / 127, "int4": (groups.amax(-1) - groups.amin(-1)) / 15}[kind]
    assert ((again - once).float().abs().view(-1, size) < 0.6 * step[:, None]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_constant_and_empty_groups_keep_their_value(kind: str) -> None:
    weight = torch.zeros(32, 64).bfloat16()
    weight[3], weight[5, :32] = 0.75, -2.5
    assert torch.equal(unpack(FORMATS[kind].pack(weight)).bfloat16(), weight)


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8 + 32 / 576), ("int4", 5)])
def test_a_weight_has_no_more_bits_than_its_format(kind: str, bits: float) -> None:
    assert FORMATS[kind].pack(random_bf16(64, 576)).nbytes * 8 == pytest.approx(64 * 576 * bits)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_gated_panels_are_those_of_the_whole_weight(kind: str) -> None:
    weight, rows = random_bf16(96, 64), torch.tensor([0, 95, 17, 17])
    whole = unpack(FORMATS[kind].pack(weight)).bfloat16()
    assert torch.equal(rows_of(FORMATS[kind].pack(weight), rows), whole[rows])
    assert torch.equal(unpack_gated(FORMATS[kind].pack_gated(weight)).bfloat16(), whole)


def test_matrices_larger_than_a_chunk_are_quantised_like_small_ones() -> None:
    weight = random_bf16(1056, 576)  # two chunks of 448 rows, and a rest
    for kind in KINDS:
        packed = FORMATS[kind].pack(weight)
        assert torch.equal(packed[60:], FORMATS[kind].pack(weight[960:]))
        assert len(packed) == 66
