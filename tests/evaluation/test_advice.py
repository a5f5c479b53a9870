"""Which cache is recommended, by made-up costs."""

from dataclasses import replace

import pytest

from ringkv.evaluation.advice import Offer, choose

FULL = Offer("full", 20, 80.0, None, None, None, slot_bytes=800, read_bytes=800, flags=())
HALF = Offer("half", 20, 79.0, 1.0, -1.0, 4.9, slot_bytes=400, read_bytes=400, flags=())
PAGED = Offer("paged", 20, 80.0, 0.0, -1.0, 1.0, slot_bytes=850, read_bytes=200, flags=())


def test_the_fewest_bytes_that_surely_lose_little_are_chosen() -> None:
    quarter = replace(HALF, cell="quarter", slot_bytes=200, read_bytes=200, lost=0.0, most_lost=5.1)
    chosen, why = choose([FULL, HALF, quarter, PAGED])
    assert chosen == HALF
    assert "lose at most 5 points at 95% confidence" in why
    assert choose([FULL, HALF, quarter, PAGED], most_lost=5.1)[0] == quarter


def test_a_cache_that_holds_every_token_and_reads_less_is_better_than_the_full_one() -> None:
    assert choose([FULL, PAGED])[0] == PAGED
    assert choose([FULL, replace(PAGED, read_bytes=751)])[0] == FULL


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(HALF, most_lost=5.1), "no other cache is sure to lose at most 5 points"),
        (replace(HALF, least_lost=None, most_lost=None), "20 prompts are too few"),
    ],
)
def test_without_evidence_the_full_cache_is_chosen(other: Offer, why: str) -> None:
    chosen, found = choose([FULL, other])
    assert chosen == FULL
    assert why in found


def test_a_score_of_0_has_nothing_to_lose() -> None:
    chosen, why = choose([replace(FULL, score=0.0), replace(HALF, score=0.0, lost=0.0)])
    assert chosen.cell == "full"
    assert why.startswith("it scores 0")
