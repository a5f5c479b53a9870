"""The Triton kernel that selects pages, in Triton's interpreter, against the reference and against sorted lists."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import product

import pytest
import torch
from torch import Tensor

from ringkv.kernels import pages
from ringkv.kernels.slots import Pages, Rows
from tests.kernels.entry_steps import HEADS, PAGE
from tests.kernels.interpreted import pages_selected

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)


def reading(counts: list[list[int]], scores: Tensor, pins: Tensor | None = None) -> Pages:
    """Return a reading of slots with these counts; pins: float32 [S, H, P], none of which are set by default."""
    pins = torch.full_like(scores[:, :, 0], float("-inf")) if pins is None else pins
    return Pages(torch.empty(0), pins, torch.tensor(counts, dtype=torch.int32))


def rows_of(live: list[int], slot: list[int] | None = None) -> Rows:
    columns = list(range(len(live))) if slot is None else slot, [0] * len(live), live
    return Rows(*(torch.tensor(column, dtype=torch.int32) for column in columns))


def selected(pool: ProcessPoolExecutor, scores: Tensor, of_slots: Pages, rows: Rows) -> Tensor:
    """Return bool [B, H, P], from the kernel's lists, for scores [B, H, G, P]."""
    lists, lengths = pool.submit(pages_selected, scores, of_slots, rows, PAGE).result()
    found = torch.zeros(*scores.shape[:2], scores.shape[3], dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        for head in range(scores.shape[1]):
            own = lists[row, head, : -(-length // PAGE)].tolist()
            assert own == sorted(set(own))
            found[row, head, own] = True
    return found


@pytest.mark.parametrize("scale", [1.0, 3.0, 1e30])
def test_of_equal_scores_the_first_pages_are_selected(pool: ProcessPoolExecutor, scale: float) -> None:
    torch.manual_seed(0)
    rows = rows_of([100 * PAGE, 77 * PAGE - 3, 13 * PAGE, 0, 5])
    scores = scale * torch.randint(-4, 5, (5, HEADS, 1, 100)).float()
    scores[:, 0] *= -0.0  # zeros of both signs
    of_slots = reading([[12, 1, 3], [40, 0, 1], [12, 2, 2], [12, 1, 3], [12, 1, 3]], scores)
    found = selected(pool, scores, of_slots, rows)
    assert torch.equal(found, pages.selected(scores, of_slots, rows, PAGE))
    assert found.sum(-1)[:, 0].tolist() == [12, 40, 12, 0, 1]


def test_the_query_that_promises_a_page_the_most_counts(pool: ProcessPoolExecutor) -> None:
    torch.manual_seed(1)
    scores = 4 * torch.randn(2, HEADS, 3, 60)
    scores[:, :, 1] += 50  # which says nothing about pages
    scores[1, 0, 2, 7] = float("inf")
    found = selected(pool, scores, reading([[20, 1, 2]] * 2, scores), rows_of([60 * PAGE, 60 * PAGE - 9]))
    older = scores[..., :58].double().clamp(max=3.4e38).softmax(-1).amax(2)
    for row, head in product(range(2), range(HEADS)):
        best = sorted(range(1, 58), key=older[row, head].tolist().__getitem__, reverse=True)[: 20 - 1 - 2]
        assert found[row, head].nonzero()[:, 0].tolist() == sorted([0, *best, 58, 59])


def test_pinned_pages_are_selected_before_those_with_higher_shares(pool: ProcessPoolExecutor) -> None:
    torch.manual_seed(2)
    scores, pins = torch.randn(2, HEADS, 3, 60), torch.full((2, HEADS, 60), float("-inf"))
    pins[0, :, [0, 5, 9, 59]] = float("inf")  # the first and the last one are read anyway
    pins[1, 1, 3:40] = float("inf")  # more than are read
    of_slots = reading([[20, 1, 2]] * 2, scores, pins.flip(0).contiguous())
    found = selected(pool, scores, of_slots, rows_of([60 * PAGE, 60 * PAGE - 9], [1, 0]))
    shares = scores[..., :58].double().softmax(-1).amax(2)
    for row, head in product(range(2), range(HEADS)):
        pinned = [page for page in range(1, 58) if pins[row, head, page] > 0][:17]
        best = sorted(range(1, 58), key=shares[row, head].tolist().__getitem__, reverse=True)
        others = [page for page in best if page not in pinned][: 17 - len(pinned)]
        assert found[row, head].nonzero()[:, 0].tolist() == sorted([0, *pinned, *others, 58, 59])


def test_scores_that_are_nan_are_the_lowest(pool: ProcessPoolExecutor) -> None:
    scores = torch.full((1, HEADS, 2, 30), float("nan"))
    scores[0, 1, 1, 20:22] = torch.tensor([-3e38, float("-inf")])
    found = selected(pool, scores, reading([[6, 1, 2]], scores), rows_of([30 * PAGE]))
    assert found[0, 0].nonzero()[:, 0].tolist() == [0, 1, 2, 3, 28, 29]
    assert found[0, 1].nonzero()[:, 0].tolist() == [0, 1, 2, 20, 28, 29]
