"""What layers select: attention that is read, and pages that a guess has, against sums over single entries."""

import pytest
import torch
from torch import Tensor

from bench.report.selections import selections as report
from bench.selections import Watch
from tests.bench.report.made import measured

PAGE, PAGES, SCALE = 4, 8, 8.0  # entries of a page, whole pages; one query is sure of its page
COUNTS = torch.tensor([[4, 1, 2, 0, 0]], dtype=torch.int32)  # of four pages that are read one is selected


def towards(*pages: int) -> Tensor:
    """Return queries [1, heads, 1, D] that look for pages, a head each."""
    return torch.eye(PAGES)[list(pages)][None, :, None]


def keys(heads: int) -> Tensor:
    return torch.eye(PAGES).repeat_interleave(PAGE, 0).expand(1, heads, -1, -1)


def watched(*steps: tuple[Tensor, Tensor | None]) -> dict[str, list[float]]:
    watch = Watch(PAGE, PAGE * PAGES, COUNTS)
    for q, guess in steps:
        watch.see(1, q, guess, keys(q.shape[1]), SCALE)
    return watch.found


def test_heads_that_look_for_different_pages_lose_one_of_them_to_one_selection() -> None:
    found = watched((towards(2, 4), None))
    (weights,) = (SCALE * towards(2) @ keys(1).mT).softmax(-1).unflatten(-1, (PAGES, PAGE)).sum(-1).unbind(0)
    own = weights.flatten()
    every = sum(own[page].item() for page in (0, 6, 7))
    assert found["attention"] == pytest.approx([every + own[2].item()])
    assert found["least"] == pytest.approx(found["attention"])
    assert found["least_of_one"] == pytest.approx([every + own[4].item()])
    assert found["attention_of_one"] == pytest.approx([every + (own[2].item() + own[4].item()) / 2])


def test_a_guess_is_compared_with_pages_that_the_step_before_did_not_select() -> None:
    first = towards(2, 4), None
    found = watched(first, (towards(3, 4), towards(3, 5)))
    assert found["chosen"] == [4.0]
    assert found["new"] == [0.5]  # page 3 of the first head
    assert found["found"] == [1.0]
    assert found["wasted"] == [0.5]  # page 5 of the second
    wrong = watched(first, (towards(3, 5), towards(3, 2)))
    assert (wrong["new"], wrong["found"], wrong["wasted"]) == ([1.0], [0.5], [0.5])
    assert "found" not in watched(first, (towards(2, 4), towards(2, 4)))


def test_the_table_has_the_newest_run_of_each_share() -> None:
    def one(read: int, found: float) -> dict[str, object]:
        shares = dict.fromkeys(("attention", "attention_of_one", "least", "least_of_one"), 0.5)
        case = {"model": "smollm2", "task": "qa_1", "read_one_of": read}
        return {**case, **shares, "chosen": 61.0, "new": 9.0, "found": found, "wasted": 4.8}

    rows = [*measured("selections", one(4, 0.1), run="1"), *measured("selections", one(4, 0.68), run="2")]
    rows += measured("selections", one(16, 0.63), run="1")
    found = [line.strip("| ").split(" | ") for line in report(rows).splitlines()[2:]]
    assert [(line[2], line[-1]) for line in found] == [("1/4", "68%"), ("1/16", "63%")]
