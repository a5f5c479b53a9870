"""Products with rows of integers: exact in each group, near those of float64, and independent of other rows."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels import quantize
from ringkv.kernels.formats import FORMATS, rows_of, unpack, unpack_gated
from ringkv.kernels.int8_products import GROUP, ROTATION, rounded
from ringkv.kernels.linear import gated, gated_reference, linear, reference
from tests.kernels.products import EPS, SHAPES, normalised, random_bf16

KINDS = {"w8a8": 127, "w4a8": 127, "w4a4": 7}
"""The largest integer of rows, by format."""
FEW = 8  # rows up to which int4 weights are multiplied with bfloat16
HALVES = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)


def hadamard() -> Tensor:
    """Return the matrix of the rotation as a Kronecker product, in float64."""
    found = torch.ones(1, 1, dtype=torch.float64)
    while len(found) < ROTATION:
        found = torch.kron(found, HALVES)
    return found


def rotated(x: Tensor) -> Tensor:
    """Rotate [M, K], and split it into groups [M, G, 128] with zeros after the last."""
    whole = (x.double().unflatten(1, (-1, ROTATION)) @ hadamard()).flatten(1)
    return torch.nn.functional.pad(whole, (0, -whole.shape[1] % GROUP)).unflatten(1, (-1, GROUP)).float()


def in_steps(groups: Tensor, levels: int = 127) -> tuple[Tensor, Tensor]:
    """Round float32 groups [M, G, 128] to so many steps; return them and the steps."""
    largest = groups.abs().amax(-1)
    return (groups * (torch.full_like(largest, levels) / largest)[..., None]).round(), largest / levels


def stored(kind: str, out: int, inner: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a packed weight, its integers [out, G, 128], their steps [out, G] and a factor of each output."""
    weight = random_bf16(out, inner)
    if kind == "w8a8":
        packed = FORMATS[kind].pack(weight)
        q, scale = quantize.int8_parts(packed.flatten(-2), torch.arange(out))
        q = torch.nn.functional.pad(q.float(), (0, -inner % GROUP)).unflatten(1, (-1, GROUP))
        return packed, q, torch.ones(q.shape[:2]), scale.T
    four = quantize.groups_of(weight)
    steps, first = (one.double().repeat_interleave(ROTATION, 1) for one in (four.scale, four.minimum))
    first *= torch.arange(inner) % ROTATION == 0
    whole = (four.q.double().unflatten(1, (-1, ROTATION)) @ hadamard()).flatten(1) * steps / ROTATION + first
    groups = torch.nn.functional.pad(whole, (0, -inner % GROUP)).unflatten(1, (-1, GROUP)).float()
    return FORMATS[kind].pack(four), *in_steps(groups), torch.ones(1, out)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("kind", "rows"),
    [("w8a8", n) for n in (1, 3, 9, 33, 520)] + [(kind, n) for kind in ("w4a8", "w4a4") for n in (9, 520)],
)
@pytest.mark.parametrize(("out", "inner"), [*SHAPES, (96, 1600)])
def test_sums_of_a_group_are_exact_integers(kind: str, rows: int, out: int, inner: int) -> None:
    """Sums of groups are scaled and added in float32, one group after the other."""
    x = torch.randint(-9, 10, (rows, inner)).bfloat16()  # sums and differences of small integers are exact
    packed, weights, steps, factor = stored(kind, out, inner)
    elements, scales = in_steps(rotated(x), KINDS[kind])
    want = torch.zeros(rows, out)
    for group in range(elements.shape[1]):
        sums = elements[:, group].double() @ weights[:, group].double().T
        want = (sums * (scales[:, group, None] * steps[None, :, group]).double() + want.double()).float()
    assert torch.equal(linear(x, packed, dtype=torch.float32), want * factor)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 8, 33, 300])
@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_a_product_has_its_norm_bias_and_residual(kind: str, rows: int, out: int, inner: int) -> None:
    x, weight, bias, norm, residual = (
        random_bf16(*shape) for shape in ((rows, inner), (out, inner), (out,), (inner,), (rows, out))
    )
    packed = FORMATS[kind].pack(weight)
    product = normalised(x, norm) @ unpack(packed).double().T
    found = linear(x, packed, bias, norm, EPS, residual, dtype=torch.float32).double() - bias - residual
    off = 127 / KINDS[kind] if rows > FEW else 1  # times as coarse
    assert (found - product).norm() < 0.01 * off * product.norm()
    torch.testing.assert_close(found.float(), product.float(), atol=0.05 * off * inner**0.5, rtol=0)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", ["w8a8", "w4a8"])
@pytest.mark.parametrize("rows", [3, 33])
@pytest.mark.parametrize("run", [gated, gated_reference])
def test_a_gated_product_is_silu_of_the_gate_times_up(kind: str, rows: int, run: object) -> None:
    x, weight, bias, norm = random_bf16(rows, 576), random_bf16(96, 576) / 24, random_bf16(96), random_bf16(576)
    packed = FORMATS[kind].pack_gated(weight)
    gate, up = (normalised(x, norm) @ unpack_gated(packed).double().T + bias.double()).chunk(2, -1)
    assert callable(run)
    torch.testing.assert_close(
        run(x, packed, bias, norm, EPS).double(), gate / (1 + (-gate).exp()) * up, atol=0.1, rtol=2e-2
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_compiled_product_torch_rounds_rows_too(kind: str) -> None:
    x, packed = random_bf16(5, 160), FORMATS[kind].pack(random_bf16(64, 160))
    found = reference(x, packed, None, None, 0.0, None, torch.float32).double()
    plain = x.double() @ unpack(packed).double().T
    levels = KINDS[kind]
    assert torch.allclose(found, rounded(x, levels).double() @ unpack(packed).double().T, atol=1e-3)
    assert 0.13 / levels < (found - plain).norm() / plain.norm() < 1.27 / levels


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("kind", "rows", "alone"), [("w8a8", 700, 1), ("w4a8", 700, 9), ("w4a8", 8, 1), ("w4a4", 700, 9)]
)
def test_a_row_does_not_depend_on_the_others_bit_for_bit(kind: str, rows: int, alone: int) -> None:
    x, packed = random_bf16(rows, 1600), FORMATS[kind].pack(random_bf16(96, 1600))
    together = linear(x, packed)
    for row in (0, 3, 7, 31, 32, 511, 691):
        if row + alone <= rows:
            assert torch.equal(linear(x[row : row + alone], packed), together[row : row + alone])
    for other in (float("nan"), float("inf"), 1e30, 0.0):
        x[0] = other
        again = linear(x, packed)
        assert again[0].isfinite().all() == (other < 1e31)
        assert torch.equal(again[1:], together[1:])
    assert (again[0] == 0).all()


@pytest.mark.usefixtures("compiled")
def test_up_to_eight_rows_of_int4_weights_are_not_rounded() -> None:
    x, packed = random_bf16(FEW, 160), FORMATS["w4a8"].pack(random_bf16(64, 160))
    assert torch.equal(linear(x, packed), linear(x, packed.flatten(-2)))
    assert torch.equal(linear(x, packed), linear(x, packed.unflatten(-1, (2, 2))))


@pytest.mark.parametrize("levels", [7, 127])
def test_rows_are_off_by_half_a_step_of_their_group(levels: int) -> None:
    x = random_bf16(50, 320) * torch.tensor([1.0, 100.0, 0.01]).repeat_interleave(128)[:320].bfloat16()
    error = rotated(rounded(x, levels)) - rotated(x)
    step = rotated(x).abs().amax(-1, keepdim=True) / levels
    assert (error.abs() <= 0.5001 * step).all()
    assert (error.abs() > 0.4 * step).any()


def test_an_outlier_costs_the_others_less_than_without_a_rotation() -> None:
    x = random_bf16(100, GROUP)
    x[:, 5] = 50.0
    q, step = in_steps(x.float()[:, None])
    plain = (q * step[..., None])[:, 0] - x
    assert 2 * (rounded(x) - x).norm() < plain.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_gated_panels_are_those_of_the_whole_weight(kind: str) -> None:
    weight, rows = random_bf16(96, 576), torch.tensor([0, 95, 17, 17])
    packed = FORMATS[kind].pack(weight)
    whole = unpack(packed)
    assert (whole - weight).norm() / weight.norm() < (0.01 if kind == "w8a8" else 0.1)
    torch.testing.assert_close(rows_of(packed, rows), whole[rows].bfloat16(), atol=1e-6, rtol=2**-7)
    assert torch.equal(unpack_gated(FORMATS[kind].pack_gated(weight)), whole)
    assert packed.nbytes == FORMATS["int8" if kind == "w8a8" else "int4"].pack(weight).nbytes
