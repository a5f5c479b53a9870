"""Int8 weights in groups: stored without rounding, and multiplied as accurately as other formats are."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels.byte_groups import ByteGroups, nearest, of_int4
from ringkv.kernels.formats import FORMATS, rows_of, unpack, unpack_gated
from ringkv.kernels.linear import gated, gated_reference, linear, reference
from ringkv.kernels.quantize import groups_of
from tests.kernels.products import EPS, SHAPES, normalised, random_bf16

KINDS = ["int8-groups", "int8-groups-a8"]
MINIMUMS = [False, True]
GROUP, FEW = 32, 8


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high + 1, shape).to(torch.int8)


def groups(out: int, inner: int, minimums: bool) -> ByteGroups:
    """Any integers that the format can store, with weights of about one."""
    scale = ((torch.rand(out, inner // GROUP) + 1) / 3000).half()
    multiple = integers(-20, 20, out, inner // (GROUP // 2))
    least = torch.randn(scale.shape).half() / 32, integers(-20, 20, *scale.shape)
    return ByteGroups(integers(-128, 127, out, inner), scale, multiple, *(least if minimums else ()))


def typical(out: int, inner: int, minimums: bool) -> ByteGroups:
    """Weights of which no group is much larger than another, or far from zero."""
    made = groups(out, inner, minimums)
    minimum = None if made.minimum is None else made.minimum / 16
    return made._replace(multiple=integers(15, 20, *made.multiple.shape), minimum=minimum)


def dequantised(groups: ByteGroups) -> Tensor:
    """Return float64 [out, in]."""
    scale = groups.scale.double().repeat_interleave(GROUP, 1)
    weight = scale * groups.multiple.double().repeat_interleave(GROUP // 2, 1) * groups.q.double()
    if groups.minimum is not None and groups.minimum_multiple is not None:
        weight += (groups.minimum.double() * groups.minimum_multiple.double()).repeat_interleave(GROUP, 1)
    return weight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minimums", MINIMUMS)
def test_a_packed_matrix_has_every_weight_and_nine_or_ten_bits_for_each(kind: str, minimums: bool) -> None:
    made, rows = groups(96, 160, minimums), torch.tensor([0, 95, 17, 17])
    packed = FORMATS[kind].pack(made)
    assert torch.equal(unpack(packed), dequantised(made).float())
    assert torch.equal(rows_of(packed, rows), dequantised(made)[rows].float().bfloat16())
    assert torch.equal(unpack_gated(FORMATS[kind].pack_gated(made)), unpack(packed))
    assert packed.nbytes * 8 == 96 * 160 * (10 if minimums else 9)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("minimums", MINIMUMS)
@pytest.mark.parametrize("rows", [1, 3, 8, 16, 33, 520])
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_product_is_that_of_the_weights_as_stored(minimums: bool, rows: int, out: int, inner: int) -> None:
    """More than 8 rows are multiplied with weights that are rounded to bfloat16."""
    x, bias, norm, residual = (random_bf16(*shape) for shape in ((rows, inner), (out,), (inner,), (rows, out)))
    made = groups(out, inner, minimums)
    packed, stored = FORMATS["int8-groups"].pack(made), dequantised(made)
    plain = linear(x, packed, dtype=torch.float32).double()
    weight = stored if rows <= FEW else stored.float().bfloat16().double()
    torch.testing.assert_close(plain, x.double() @ weight.T, atol=1e-4 * inner**0.5, rtol=1e-5)
    want = normalised(x, norm) @ stored.T + bias.double() + residual.double()
    found = linear(x, packed, bias, norm, EPS, residual).double()
    torch.testing.assert_close(found, want, atol=0.01 * inner**0.5, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("minimums", MINIMUMS)
@pytest.mark.parametrize("rows", [1, 8, 9, 33, 300])
@pytest.mark.parametrize(("out", "inner"), [*SHAPES, (96, 1600)])
def test_int8_rows_change_a_product_by_less_than_a_hundredth(minimums: bool, rows: int, out: int, inner: int) -> None:
    x, bias, norm, residual = (random_bf16(*shape) for shape in ((rows, inner), (out,), (inner,), (rows, out)))
    made = typical(out, inner, minimums)
    product = normalised(x, norm) @ dequantised(made).T
    packed = FORMATS["int8-groups-a8"].pack(made)
    found = linear(x, packed, bias, norm, EPS, residual, dtype=torch.float32).double() - bias - residual
    assert (found - product).norm() < 0.01 * product.norm()
    if rows <= FEW:
        assert torch.equal(linear(x, packed), linear(x, FORMATS["int8-groups"].pack(made)))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minimums", MINIMUMS)
@pytest.mark.parametrize("rows", [3, 33])
@pytest.mark.parametrize("run", [gated, gated_reference])
def test_a_gated_product_is_silu_of_the_gate_times_up(kind: str, minimums: bool, rows: int, run: object) -> None:
    x, bias, norm = random_bf16(rows, 576), random_bf16(96), random_bf16(576) / 24
    made = typical(96, 576, minimums)
    gate, up = (normalised(x, norm) @ dequantised(made).T + bias.double()).chunk(2, -1)
    assert callable(run)
    found = run(x, FORMATS[kind].pack_gated(made), bias, norm, EPS).double()
    torch.testing.assert_close(found, gate / (1 + (-gate).exp()) * up, atol=0.1, rtol=2e-2)


@pytest.mark.parametrize("minimums", MINIMUMS)
def test_without_the_compiled_product_torch_gives_the_same(minimums: bool) -> None:
    x, norm, residual, made = random_bf16(5, 96), random_bf16(96), random_bf16(5, 64), groups(64, 96, minimums)
    found = reference(x, FORMATS["int8-groups"].pack(made), None, norm, EPS, residual, torch.float32).double()
    want = normalised(x, norm) @ dequantised(made).T + residual.double()
    torch.testing.assert_close(found, want, atol=0.1, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minimums", MINIMUMS)
@pytest.mark.parametrize(("rows", "alone"), [(700, 9), (8, 1)])
def test_a_row_does_not_depend_on_the_others_bit_for_bit(kind: str, minimums: bool, rows: int, alone: int) -> None:
    x, packed = random_bf16(rows, 1600), FORMATS[kind].pack(groups(96, 1600, minimums))
    together = linear(x, packed)
    for row in (0, 3, 7, 31, 32, 511, 691):
        if row + alone <= rows:
            assert torch.equal(linear(x[row : row + alone], packed), together[row : row + alone])
    x[0] = float("nan")
    again = linear(x, packed)
    assert not again[0].isfinite().all()
    assert torch.equal(again[1:], together[1:])


def test_other_weights_are_off_by_half_a_step_of_their_group_at_most() -> None:
    weight = random_bf16(64, 160)
    step = weight.float().view(64, -1, GROUP).abs().amax(-1) / 127
    error = (unpack(FORMATS["int8-groups"].pack(weight)) - weight.float()).abs().view(64, -1, GROUP)
    assert (error <= 0.6 * step[..., None]).all()  # the largest is off by 127 times the rounding of its scale, too
    assert nearest(torch.zeros(32, 64)).q.count_nonzero() == 0


def test_four_bit_groups_keep_their_values() -> None:
    four_bits = groups_of(random_bf16(64, 160))
    packed = FORMATS["int8-groups"].pack(of_int4(four_bits))
    assert torch.equal(unpack(packed), unpack(FORMATS["int4"].pack(four_bits)))
