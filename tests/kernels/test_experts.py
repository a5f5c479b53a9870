"""The experts' operator against float64 sums over each row's own experts."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels.by_head import by_head
from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.experts import experts
from ringkv.kernels.formats import FORMATS, unpack, unpack_gated
from ringkv.kernels.linear import gated, linear
from ringkv.kernels.norm import RMSNorm
from tests.kernels.products import EPS, normalised, random_bf16

pytestmark = pytest.mark.usefixtures("compiled")
COUNT, CHOSEN, HIDDEN, BETWEEN = 6, 2, 96, 64
INT8_ROWS = ("w8a8", "w4a8", "int8-groups-a8")
FEW, MANY = (1, 8), (9, 40)  # int4 weights are multiplied in another way with more than 8 rows


def stacks(form: str) -> tuple[Tensor, Tensor]:
    """Each expert's gate and up [2 * BETWEEN, HIDDEN], and down [HIDDEN, BETWEEN], stacked."""
    gate_up = [random_bf16(2 * BETWEEN, HIDDEN) / HIDDEN**0.5 for _ in range(COUNT)]
    down = [random_bf16(HIDDEN, BETWEEN) / BETWEEN**0.5 for _ in range(COUNT)]
    if form == "plain":
        return torch.cat(gate_up), torch.cat(down)
    return torch.cat(list(map(FORMATS[form].pack_gated, gate_up))), torch.cat(list(map(FORMATS[form].pack, down)))


def choices(rows: int) -> tuple[Tensor, Tensor]:
    """Experts 0 to 4 at random, expert 5 never; and weights."""
    chosen = torch.stack([torch.randperm(COUNT - 1)[:CHOSEN] for _ in range(rows)])
    return chosen, torch.rand(rows, CHOSEN)


@pytest.mark.parametrize("form", ["plain", "int8"])
def test_a_graph_has_one_operator_for_all_experts(form: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
            return experts(x, chosen, weights, ExpertStack(*matrices, COUNT), x)

    matrices, given = stacks(form), (random_bf16(8, HIDDEN), *choices(8))
    graph = torch.export.export(Module(), given)
    assert [node.name for node in graph.graph.nodes if node.op == "call_function"] in (["experts"], ["experts_any"])
    assert torch.equal(graph.module()(*given), Module()(*given))


def inputs(rows: int) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return rows, the norm's gains, a residual and the chosen experts with their weights."""
    return random_bf16(rows, HIDDEN), random_bf16(HIDDEN), random_bf16(rows, HIDDEN), choices(rows)


FORMS = ["plain", "bf16", "int8", "int4", "w8a8", "w4a8", "int8-groups", "int8-groups-a8"]
MIXED = [("int8-groups-a8", "w8a8"), ("int4", "int8-groups")]


@pytest.mark.parametrize("rows", [1, 8, 9, 70])
@pytest.mark.parametrize(("form", "second_form"), [*((form, form) for form in FORMS), *MIXED])
def test_each_row_is_the_weighted_sum_of_its_experts(rows: int, form: str, second_form: str) -> None:
    x, norm, residual, (chosen, weights) = inputs(rows)
    gate_up, down = stacks(form)[0], stacks(second_form)[1]
    found = experts(x, chosen, weights, ExpertStack(gate_up, down, COUNT), residual, RMSNorm(norm, EPS))
    want = residual.double()
    for row in range(rows):
        for expert, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
            first, second = (
                unpack_gated(gate_up.chunk(COUNT)[expert]).double(),
                unpack(down.chunk(COUNT)[expert]).double(),
            )
            gate, up = (normalised(x[row : row + 1], norm) @ first.T).chunk(2, -1)
            want[row] += weight * ((gate / (1 + (-gate).exp()) * up) @ second.T)[0]
    torch.testing.assert_close(found.double(), want, atol=0.1 if form in INT8_ROWS else 0.03, rtol=2e-2)


@pytest.mark.parametrize("form", ["w4a8", "w4a4"])
def test_an_expert_rounds_its_rows_to_the_bits_that_a_dense_network_does(form: str) -> None:
    x, norm, residual, (chosen, weights) = inputs(40)
    gate_up, down = stacks(form)
    chosen, weights = torch.ones_like(chosen[:, :1]), torch.ones_like(weights[:, :1])
    found = experts(x, chosen, weights, ExpertStack(gate_up, down, COUNT), residual, RMSNorm(norm, EPS))
    between = gated(x, gate_up.chunk(COUNT)[1], None, norm, EPS)
    want = linear(between, down.chunk(COUNT)[1].contiguous(), dtype=torch.float32) + residual
    torch.testing.assert_close(found, want.bfloat16(), atol=1e-6, rtol=2**-7)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("form", ["plain", "bf16", "int4"])
def test_experts_with_biases_and_clamped_gates(rows: int, form: str) -> None:
    x, (chosen, weights), (gate_up, down) = random_bf16(rows, HIDDEN), choices(rows), stacks(form)
    first_bias, second_bias = 8 * random_bf16(COUNT * 2 * BETWEEN), random_bf16(COUNT * HIDDEN)
    stack = ExpertStack(gate_up, down, COUNT, "clamped_swiglu", first_bias, second_bias)
    found = experts(x, chosen, weights, stack, torch.zeros_like(x))
    want = torch.zeros_like(x).double()
    for row in range(rows):
        for expert, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
            first, second = unpack_gated(gate_up.chunk(COUNT)[expert]).double(), unpack(down.chunk(COUNT)[expert])
            gate, up = (first @ x[row].double() + first_bias.view(COUNT, -1)[expert]).chunk(2)
            gate, up = gate.clamp(max=7), up.clamp(-7, 7)
            between = (up + 1) * gate / (1 + (-1.702 * gate).exp())
            want[row] += weight * (second.double() @ between + second_bias.view(COUNT, -1)[expert])
    torch.testing.assert_close(found.double(), want, atol=0.3, rtol=2e-2)


@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("form", ["plain", "bf16", "int8", "int4"])
def test_two_halves_of_the_experts_add_up_to_all_of_them(rows: int, form: str) -> None:
    x, norm, residual, (chosen, weights) = inputs(rows)
    gate_up, down = stacks(form)

    def run(first: int, stop: int, rest: Tensor) -> Tensor:
        own = [torch.cat(one.chunk(COUNT)[first:stop]) for one in (gate_up, down)]
        return experts(x, chosen - first, weights, ExpertStack(*own, stop - first), rest, RMSNorm(norm, EPS)).double()

    zeros = torch.zeros_like(residual)
    parts, whole = run(0, 2, zeros) + run(2, 6, residual), run(0, COUNT, residual)
    torch.testing.assert_close(parts, whole, atol=0.02, rtol=1e-2)
    nowhere = chosen + COUNT * (2 * torch.randint(2, chosen.shape) - 1)  # each below the first expert or after the last
    assert torch.equal(
        experts(x, nowhere, weights, ExpertStack(gate_up, down, COUNT), residual, RMSNorm(norm, EPS)), residual
    )


@pytest.mark.parametrize(
    ("form", "rows"),
    [(form, (1, 40)) for form in ("bf16", "int8", "w8a8")]
    + [(form, rows) for form in ("int4", "w4a8") for rows in (FEW, MANY)],
)
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(form: str, rows: tuple[int, int]) -> None:
    few, many = rows
    x, residual, (chosen, weights) = random_bf16(many, HIDDEN), random_bf16(many, HIDDEN), choices(many)
    matrices = stacks(form)

    def run(count: int) -> Tensor:
        here = (part[:count] for part in (x, chosen, weights))
        return experts(*here, ExpertStack(*matrices, COUNT), residual[:count].contiguous())

    assert torch.equal(run(few), run(many)[:few])


@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("form", ["plain", "bf16", "int8", "int4"])
def test_each_head_is_multiplied_with_a_matrix_of_its_own(rows: int, form: str) -> None:
    heads, out, inner = 5, 64, 96
    matrices = [random_bf16(out, inner) for _ in range(heads)]
    weight = torch.cat([one if form == "plain" else FORMATS[form].pack(one) for one in matrices])
    x = random_bf16(rows, heads, 128)[..., :inner]
    want = torch.stack([x[:, h].double() @ unpack(weight.chunk(heads)[h]).double().T for h in range(heads)], 1)
    torch.testing.assert_close(by_head(x, weight).double(), want, atol=0.05 * inner**0.5, rtol=2e-2)
    if form != "int4":
        assert torch.equal(by_head(x[:1], weight), by_head(x, weight)[:1])
