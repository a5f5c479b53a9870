"""The Triton kernels of `experts` in Triton's interpreter on the CPU, against the torch reference.

The interpreter cannot multiply bfloat16, so the kernels multiply float32 copies there.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import combinations_with_replacement, pairwise
from math import ceil
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.experts import reference
from ringkv.kernels.gpu.experts import MAX_ROWS, expert_tiling, most_tiles, tile_rows
from ringkv.kernels.gpu.tiling import H100
from ringkv.kernels.slots import mapped
from tests.kernels.interpreted import experts as experts_on
from tests.kernels.interpreted import placed, ranked

HIDDEN, BETWEEN = 80, 48  # not multiples of a tile's columns or depth
TOLERANCE = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}


class Inputs(NamedTuple):
    """The arguments of `gpu.experts.experts`."""

    x: Tensor
    chosen: Tensor
    weights: Tensor
    stack: ExpertStack
    residual: Tensor


def some(rows: int, count: int, chosen: int, dtype: torch.dtype, activation: str, biased: bool) -> Inputs:
    """Return random inputs. The last expert is never chosen, and its weights are NaN."""
    torch.manual_seed(rows)
    x, residual = torch.randn(rows, HIDDEN).to(dtype), torch.randn(rows, HIDDEN).to(dtype)
    choice = torch.stack([torch.randperm(count - 1)[:chosen].sort().values for _ in range(rows)])
    gate_up = (torch.randn(count, 2 * BETWEEN, HIDDEN) / HIDDEN**0.5).to(dtype)
    down = (torch.randn(count, HIDDEN, BETWEEN) / BETWEEN**0.5).to(dtype)
    gate_up[-1] = down[-1] = float("nan")
    biases = [4 * torch.randn(count * 2 * BETWEEN).to(dtype), torch.randn(count * HIDDEN).to(dtype)]
    matrices = gate_up.flatten(0, 1), down.flatten(0, 1)
    stack = ExpertStack(*matrices, count, activation, *(biases if biased else []))
    return Inputs(x, choice, torch.rand(rows, chosen), stack, residual)


def wanted(inputs: Inputs) -> Tensor:
    """Return the reference's result in float32."""
    return reference(*mapped(inputs, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor))


@pytest.mark.parametrize(
    ("rows", "count", "chosen", "dtype", "activation", "biased"),
    [
        (1, 9, 4, torch.float32, "silu", False),
        (5, 6, 2, torch.float32, "clamped_swiglu", True),
        (40, 3, 2, torch.float32, "gelu_tanh", False),  # more than one tile an expert
        (7, 6, 1, torch.float16, "gelu_tanh", True),
        (1, 6, 3, torch.bfloat16, "clamped_swiglu", True),
        (9, 20, 6, torch.bfloat16, "silu", False),
        (140, 3, 2, torch.bfloat16, "silu", True),  # tiles of 32 rows
    ],
)
def test_it_equals_the_reference_and_reads_only_experts_that_are_chosen(
    pool: ProcessPoolExecutor,
    rows: int,
    count: int,
    chosen: int,
    dtype: torch.dtype,
    activation: str,
    biased: bool,
) -> None:
    inputs = some(rows, count, chosen, dtype, activation, biased)
    found, want = pool.submit(experts_on, *inputs).result(), wanted(inputs)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.slow  # interprets kernels
@pytest.mark.parametrize(("rows", "count", "chosen"), [(5, 9, 4), (260, 4, 2)])
def test_experts_outside_the_stack_add_nothing(pool: ProcessPoolExecutor, rows: int, count: int, chosen: int) -> None:
    """Of so many experts, the rank has those from number 2 on; the last is never chosen."""
    inputs = some(rows, count, chosen, torch.float32, "silu", biased=False)
    own = (torch.cat(stack.chunk(count)[2:]) for stack in (inputs.stack.gate_up, inputs.stack.down))
    inputs = inputs._replace(chosen=inputs.chosen - 2, stack=ExpertStack(*own, count - 2))
    found = pool.submit(experts_on, *inputs).result()
    assert (inputs.chosen < 0).any()
    torch.testing.assert_close(found, wanted(inputs), atol=1e-5, rtol=1e-5)
    inputs.chosen.fill_(count)
    assert torch.equal(pool.submit(experts_on, *inputs).result(), inputs.residual)


def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(pool: ProcessPoolExecutor) -> None:
    inputs = some(20, 6, 2, torch.bfloat16, "silu", biased=False)
    want = pool.submit(experts_on, *inputs).result()
    others = some(19, 6, 2, torch.bfloat16, "silu", biased=False)
    for name in ("x", "chosen", "weights", "residual"):
        getattr(inputs, name)[:19] = getattr(others, name)
    found = pool.submit(experts_on, *inputs).result()
    assert torch.equal(found[19], want[19])
    assert not torch.equal(found[:19], want[:19])


@pytest.mark.parametrize(("rows", "count", "chosen"), [(1, 5, 1), (64, 2, 2), (90, 200, 3), (600, 9, 2)])
def test_pairs_are_sorted_by_expert_and_then_by_row(
    pool: ProcessPoolExecutor, rows: int, count: int, chosen: int
) -> None:
    choice = torch.stack([torch.randperm(count)[:chosen] for _ in range(rows)])
    check_sorted(pool, choice, count)


@pytest.mark.parametrize(("rows", "count"), [(1, 5), (64, 3), (600, 9)])
def test_pairs_of_experts_on_another_rank_come_last(pool: ProcessPoolExecutor, rows: int, count: int) -> None:
    check_sorted(pool, torch.randint(-2 * count, 3 * count, (rows, 2)), count)


def check_sorted(pool: ProcessPoolExecutor, choice: Tensor, count: int) -> None:
    experts = [expert if 0 <= expert < count else count for expert in choice.flatten().tolist()]
    pairs = [(expert, pair) for pair, expert in enumerate(experts)]
    for order, bounds in (pool.submit(sort, choice, count).result() for sort in (ranked, placed)):
        assert order.tolist() == [pair for _, pair in sorted(pairs)]
        assert bounds.tolist() == [sum(expert < n for expert, _ in pairs) for n in range(count + 1)]


def distributions(pairs: int, experts: int) -> Iterator[list[int]]:
    """Yield how many of the pairs each expert has, in every way except for the experts' order."""
    for cuts in combinations_with_replacement(range(pairs + 1), experts - 1):
        ends = (0, *cuts, pairs)
        yield [stop - start for start, stop in pairwise(ends)]


@pytest.mark.parametrize("experts", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_the_most_tiles_are_what_the_worst_distribution_needs(experts: int, rows: int) -> None:
    for pairs in range(1, 12):
        needed = (sum(ceil(n / rows) for n in each) for each in distributions(pairs, experts))
        assert max(needed) == most_tiles(pairs, experts, rows)


def test_tiles_grow_with_the_rows_of_an_expert() -> None:
    assert [tile_rows(8 * rows, 128, 2) for rows in (1, 64, 512, 1024, 2048, 4096, 1 << 20)] == [
        *[16, 16, 64, 128, 128, 128, MAX_ROWS]
    ]
    assert tile_rows(8 << 20, 128, 4) == 16


@pytest.mark.parametrize(("tiles", "columns"), [(8, 32), (24, 64), (1000, 64)])
def test_few_tiles_are_cut_into_more_columns_until_all_processors_read(tiles: int, columns: int) -> None:
    assert expert_tiling(16, tiles, 768, 2, 2, H100).columns == columns
