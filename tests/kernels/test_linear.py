"""The C++ products against float64 ones, and packing against its inverse."""

import pytest
import torch

from ringkv.kernels.formats import FORMATS, rows_of, unpack_gated
from ringkv.kernels.linear import gated, linear
from ringkv.kernels.packing import can_pack, pack, pack_gated, unpack
from tests.kernels.products import EPS, SHAPES, normalised, random_bf16

pytestmark = pytest.mark.usefixtures("compiled")
ROWS = [1, 3, 16, 17, 33, 300, 520]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_product_has_its_norm_bias_and_residual(rows: int, out: int, inner: int) -> None:
    x, weight, bias, norm, residual = (
        random_bf16(*shape) for shape in ((rows, inner), (out, inner), (out,), (inner,), (rows, out))
    )
    close = {"atol": 0.01 * inner**0.5, "rtol": 1e-2}
    plain, fused = linear(x, pack(weight), dtype=torch.float32), linear(x, pack(weight), bias, norm, EPS, residual)
    torch.testing.assert_close(plain.double(), x.double() @ weight.double().T, atol=1e-4 * inner, rtol=1e-5)
    want = normalised(x, norm) @ weight.double().T + bias.double() + residual.double()
    torch.testing.assert_close(fused.double(), want, **close)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_gated_product_is_silu_of_the_gate_times_up(rows: int, out: int, inner: int) -> None:
    x, weight, bias, norm = (random_bf16(*shape) for shape in ((rows, inner), (out, inner), (out,), (inner,)))
    weight = weight / inner**0.5
    gate, up = (normalised(x, norm) @ weight.double().T + bias.double()).chunk(2, -1)
    want = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(gated(x, pack_gated(weight), bias, norm, EPS).double(), want, atol=0.03, rtol=2e-2)


@pytest.mark.parametrize("rows", [1, 33, 300])
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_gemmas_norm_adds_one_to_its_weight_and_is_rounded_once(rows: int, out: int, inner: int) -> None:
    x, weight, norm = (random_bf16(*shape) for shape in ((rows, inner), (out, inner), (inner,)))
    wide = x.double()
    scaled = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * (1 + norm.double())
    want = scaled.bfloat16().double() @ weight.double().T
    for packed in (weight, pack(weight)):
        found = linear(x, packed, None, norm, EPS, dtype=torch.float32, offset=1.0)
        torch.testing.assert_close(found.double(), want, atol=0.01 * inner**0.5, rtol=1e-2)


@pytest.mark.parametrize("rows", [1, 33, 300])
@pytest.mark.parametrize("form", ["plain", "bf16", "int8", "int4"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate_applies_the_activation_of_this_name(rows: int, form: str, activation: str) -> None:
    """Gates reach from -12 to 12, beyond the curved part of the activation."""
    x, weight, norm = random_bf16(rows, 64), random_bf16(96, 64) / 2, random_bf16(64)
    packed = weight if form == "plain" else FORMATS[form].pack_gated(weight)
    gate, up = (normalised(x, norm) @ unpack_gated(packed).double().T).chunk(2, -1)
    tanh = torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))
    want = up * (gate / (1 + (-gate).exp()) if activation == "silu" else gate / 2 * (1 + tanh))
    found = gated(x, packed, None, norm, EPS, activation).double()
    torch.testing.assert_close(found, want, atol=0.15, rtol=2e-2)


def test_an_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="relu"):
        torch.ops.ringkv.gated(
            random_bf16(1, 64), pack_gated(random_bf16(64, 64)), None, random_bf16(64), EPS, "relu", 0.0
        )


def test_a_row_does_not_depend_on_the_others_bit_for_bit() -> None:
    x, weight = random_bf16(700, 576), pack(random_bf16(512, 576))
    together = linear(x, weight)
    for row in (0, 31, 32, 511, 699):
        assert torch.equal(linear(x[row : row + 1], weight)[0], together[row])
    x[0] = float("nan")
    again = linear(x, weight)
    assert again[0].isnan().all()
    assert torch.equal(again[1:], together[1:])


def test_packing_is_inverted_by_unpacking() -> None:
    weight = random_bf16(96, 64)
    assert torch.equal(unpack(pack(weight)), weight)
    assert torch.equal(unpack_gated(pack_gated(weight)), weight)
    rows = torch.tensor([0, 95, 17, 17])
    assert torch.equal(rows_of(pack(weight), rows), weight[rows])
    assert torch.equal(rows_of(weight, rows), weight[rows])


def test_only_whole_bfloat16_matrices_are_packed() -> None:
    assert can_pack(random_bf16(64, 64))
    assert not can_pack(random_bf16(64, 48))
    assert not can_pack(random_bf16(40, 64))
    assert not can_pack(random_bf16(64))
    assert not can_pack(random_bf16(64, 64).float())
