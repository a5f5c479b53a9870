"""The Triton kernels of heads of different lengths and of pages, in Triton's interpreter, against the references."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import product
from typing import Any

import pytest
import torch

from ringkv.base.cache_spec import MEANS
from ringkv.kernels import decode_attend_heads, decode_attend_pages
from ringkv.kernels.decode_attend_pages import EVERY_PAGE
from tests.kernels import interpreted
from tests.kernels.budgets import HEADS, PAGE, copied, heads_inputs, pages_inputs
from tests.kernels.interpreted import SCALE, Cut

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ROUNDING = 2**-7  # the interpreter truncates to bfloat16, such as means
SHAPES = [(torch.float32, 64, 4), (torch.float32, 80, 7), (torch.float16, 128, 1), (torch.bfloat16, 80, 4)]
REFERENCES: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "heads_attend": decode_attend_heads.reference,
    "pages_attend": decode_attend_pages.reference,
}


def compare(pool: ProcessPoolExecutor, name: str, inputs: list[Any], cut: Cut, *means: torch.Tensor) -> torch.Tensor:
    """Compare out, lse and all that may be written; return out."""
    wanted, wanted_means = copied(inputs), copied(list(means))
    (out, lse), planes = pool.submit(getattr(interpreted, name), inputs, cut, *means).result()
    want = REFERENCES[name](*wanted, SCALE, *wanted_means)
    off = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.float(), want[0].float(), atol=off, rtol=off)
    torch.testing.assert_close(lse, want[1], atol=2e-6, rtol=2e-6)
    for plane, other in zip(planes, [*wanted[3 : 3 + len(planes) - len(means)], *wanted_means], strict=True):
        torch.testing.assert_close(plane, other, atol=0, rtol=ROUNDING if out.dtype == torch.bfloat16 else 0)
    found: torch.Tensor = out
    return found


@pytest.mark.parametrize(("dtype", "width", "groups"), SHAPES)
def test_heads_of_different_lengths_equal_the_reference(
    pool: ProcessPoolExecutor, dtype: torch.dtype, width: int, groups: int
) -> None:
    out = compare(pool, "heads_attend", heads_inputs([90, 0, 33, 1], dtype, groups, width), (2, 16))
    assert not out[1].any()


@pytest.mark.parametrize("cut", [(1, 64), (5, 32), None])
def test_any_tiling_of_heads_gives_the_same_result(pool: ProcessPoolExecutor, cut: Cut) -> None:
    compare(pool, "heads_attend", heads_inputs([200, 17], torch.float32, 3, 64), cut)


def test_a_head_with_many_times_the_usual_entries_has_longer_splits(pool: ProcessPoolExecutor) -> None:
    """If a head has one split on average, any head has four at most: here 307 entries are four of 80."""
    q, k, v, keys, values, _, slot, _, _ = heads_inputs([160], torch.float32, 2, 64)
    places = torch.tensor([[[0, -10], [7, 290]]], dtype=torch.int32)
    entry, live = (torch.tensor([n], dtype=torch.int32) for n in (16, 17))
    compare(pool, "heads_attend", [q, k, v, keys, values, places, slot, entry, live], (1, 16))


@pytest.mark.parametrize("name", REFERENCES)
def test_without_new_keys_they_read_what_is_written(pool: ProcessPoolExecutor, name: str) -> None:
    make = heads_inputs if name == "heads_attend" else pages_inputs
    inputs = make([250, 0, 33], torch.float32, 4, 64)
    inputs[1] = inputs[2] = None
    compare(pool, name, inputs, (2, 16))


@pytest.mark.parametrize(
    ("dtype", "width", "groups", "is_mean"), [*((*shape, True) for shape in SHAPES), (torch.float32, 64, 1, False)]
)
def test_pages_equal_the_reference(
    pool: ProcessPoolExecutor, dtype: torch.dtype, width: int, groups: int, is_mean: bool
) -> None:
    """The second row reads 12 of 16 pages, the last one all of 18."""
    out = compare(pool, "pages_attend", pages_inputs([0, 250, 33, 288], dtype, groups, width, is_mean), (2, 16))
    assert not out[0].any()


@pytest.mark.parametrize(("dtype", "width", "groups"), SHAPES)
def test_estimated_pages_equal_the_reference(
    pool: ProcessPoolExecutor, dtype: torch.dtype, width: int, groups: int
) -> None:
    """The second row reads 12 of 16 pages; the others read all."""
    inputs = pages_inputs([0, 250, 33, 288], dtype, groups, width)
    means = torch.randn(4, HEADS, MEANS, width)
    compare(pool, "pages_attend", inputs, (2, 16), means)


@pytest.mark.parametrize("cut", [(1, 64), (5, 32), None])
def test_any_tiling_of_pages_gives_the_same_result(pool: ProcessPoolExecutor, cut: Cut) -> None:
    compare(pool, "pages_attend", pages_inputs([300, 17], torch.float32, 3, 64), cut)


def test_with_all_pages_a_step_has_the_bits_of_decode_attention(pool: ProcessPoolExecutor) -> None:
    inputs = pages_inputs([200, 0, 48], torch.float32, 3, 64)
    inputs[7][:, 0] = EVERY_PAGE
    plain = copied([*inputs[:5], *inputs[8:]])
    found, planes = pool.submit(interpreted.pages_attend, inputs, (3, 32)).result()
    want, others = pool.submit(interpreted.decode_attend, plain, (3, 32)).result()
    for one, other in zip((*found, *planes), (*want, *others), strict=False):
        assert torch.equal(one, other)


def no_pins(scores: torch.Tensor) -> torch.Tensor:
    return torch.full_like(scores[:, :, 0], float("-inf"))


def selected_pages(
    pool: ProcessPoolExecutor, scores: torch.Tensor, *numbers: torch.Tensor, pins: torch.Tensor | None = None
) -> torch.Tensor:
    """Return bool [B, H, P], from the kernel's lists, for scores [B, H, G, P]."""
    pins = no_pins(scores) if pins is None else pins
    pages, lengths = pool.submit(interpreted.pages_selected, [scores, pins, *numbers], PAGE).result()
    found = torch.zeros(*scores.shape[:2], scores.shape[3], dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        for head in range(scores.shape[1]):
            own = pages[row, head, : -(-length // PAGE)].tolist()
            assert own == sorted(set(own))
            found[row, head, own] = True
    return found


@pytest.mark.parametrize("scale", [1.0, 3.0, 1e30])
def test_of_equal_scores_the_first_pages_are_selected(pool: ProcessPoolExecutor, scale: float) -> None:
    torch.manual_seed(0)
    live = torch.tensor([100 * PAGE, 77 * PAGE - 3, 13 * PAGE, 0, 5], dtype=torch.int32)
    scores = scale * torch.randint(-4, 5, (len(live), HEADS, 1, 100)).float()
    scores[:, 0] *= -0.0  # zeros of both signs
    counts = torch.tensor(
        [[12, 1, 3, 1, 0], [40, 0, 1, 1, 0], [12, 2, 2, 0, 1], [12, 1, 3, 1, 0], [12, 1, 3, 1, 1]]
    ).int()
    slot = torch.arange(len(live)).int()
    found = selected_pages(pool, scores, counts, slot, live)
    assert torch.equal(found, decode_attend_pages.selected(scores, no_pins(scores), counts, live, PAGE))
    assert found.sum(-1)[:, 0].tolist() == [12, 40, 12, 0, 1]


def test_the_query_that_promises_a_page_the_most_counts(pool: ProcessPoolExecutor) -> None:
    torch.manual_seed(1)
    scores = 4 * torch.randn(2, HEADS, 3, 60)
    scores[:, :, 1] += 50  # which says nothing about pages
    scores[1, 0, 2, 7] = float("inf")
    counts, slot = torch.tensor([[20, 1, 2, 1, 0]] * 2).int(), torch.arange(2).int()
    found = selected_pages(pool, scores, counts, slot, torch.tensor([60 * PAGE, 60 * PAGE - 9]).int())
    older = scores[..., :58].double().clamp(max=3.4e38).softmax(-1).amax(2)
    for row, head in product(range(2), range(HEADS)):
        best = sorted(range(1, 58), key=older[row, head].tolist().__getitem__, reverse=True)[: 20 - 1 - 2]
        assert found[row, head].nonzero()[:, 0].tolist() == sorted([0, *best, 58, 59])


def test_heads_that_select_together_read_the_highest_share_of_any(pool: ProcessPoolExecutor) -> None:
    torch.manual_seed(3)
    scores, pins = torch.randn(2, HEADS, 3, 60), torch.full((2, HEADS, 60), float("-inf"))
    pins[0, :, 5] = pins[1, 1, 9] = float("inf")
    counts, slot = torch.tensor([[20, 1, 2, 1, 1], [20, 1, 2, 1, 0]]).int(), torch.arange(2).int()
    live = torch.tensor([60 * PAGE, 60 * PAGE - 9]).int()
    found = selected_pages(pool, scores, counts, slot, live, pins=pins)
    shares = scores[0, ..., :58].double().softmax(-1).amax((0, 1))
    best = sorted((page for page in range(1, 58) if page != 5), key=shares.tolist().__getitem__, reverse=True)[:16]
    for head in range(HEADS):
        assert found[0, head].nonzero()[:, 0].tolist() == sorted([0, 5, *best, 58, 59])
    assert not torch.equal(found[1, 0], found[1, 1])


def test_pinned_pages_are_selected_before_those_with_higher_shares(pool: ProcessPoolExecutor) -> None:
    torch.manual_seed(2)
    scores, pins = torch.randn(2, HEADS, 3, 60), torch.full((2, HEADS, 60), float("-inf"))
    pins[0, :, [0, 5, 9, 59]] = float("inf")  # the first and the last one are read anyway
    pins[1, 1, 3:40] = float("inf")  # more than are read
    counts, slot = torch.tensor([[20, 1, 2, 1, 0]] * 2).int(), torch.tensor([1, 0]).int()
    live = torch.tensor([60 * PAGE, 60 * PAGE - 9]).int()
    found = selected_pages(pool, scores, counts, slot, live, pins=pins.flip(0).contiguous())
    shares = scores[..., :58].double().softmax(-1).amax(2)
    for row, head in product(range(2), range(HEADS)):
        pinned = [page for page in range(1, 58) if pins[row, head, page] > 0][:17]
        best = sorted(range(1, 58), key=shares[row, head].tolist().__getitem__, reverse=True)
        others = [page for page in best if page not in pinned][: 17 - len(pinned)]
        assert found[row, head].nonzero()[:, 0].tolist() == sorted([0, *pinned, *others, 58, 59])


def test_scores_that_are_nan_are_the_lowest(pool: ProcessPoolExecutor) -> None:
    scores = torch.full((1, HEADS, 2, 30), float("nan"))
    scores[0, 1, 1, 20:22] = torch.tensor([-3e38, float("-inf")])
    numbers = torch.tensor([[6, 1, 2, 1]]).int(), torch.zeros(1).int(), torch.tensor([30 * PAGE]).int()
    found = selected_pages(pool, scores, *numbers)
    assert found[0, 0].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 28, 29]
    assert found[0, 1].nonzero()[:, 0].tolist() == [0, 1, 2, 20, 28, 29]


@pytest.mark.parametrize("name", ["decode_attend_heads", "decode_attend_pages"])
def test_the_operators_run_the_kernels_on_cuda(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ringkv::{name}", "CUDA")
