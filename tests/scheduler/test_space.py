"""Entries of the staging: none belongs to two prompts, and all come back."""

from random import Random

import pytest

from ringkv.scheduler.lanes import Space


@pytest.mark.parametrize("seed", range(20))
def test_no_entry_is_taken_twice_and_none_is_lost(seed: int) -> None:
    random, space, taken = Random(seed), Space(1000, 700), dict[int, int]()
    for _ in range(400):
        count, beside = random.choice([3, 40, 250, 700]), random.random() < 0.2
        if space.fits(count, beside) and random.random() < 0.6:
            first = space.take(count, beside)
            entries = set(range(first, first + count))
            assert entries <= set(range(1000))
            assert all(entries.isdisjoint(range(at, at + size)) for at, size in taken.items())
            assert not beside or first >= 700
            taken[first] = count
        elif taken:
            first = random.choice(list(taken))
            space.give(first, taken.pop(first))
        runs = [range(first, first + size) for first, size in taken.items()]
        assert space.with_free(runs).fits(1000)
        assert space.fits(1000) == (not taken)
    for first, count in taken.items():
        space.give(first, count)
    assert space.take(1000) == 0


def test_short_prompts_lie_at_the_end_so_that_the_longest_fits_before_them() -> None:
    space = Space(1000, 700)
    assert [space.take(100), space.take(200)] == [900, 700]
    assert space.take(700) == 0
    assert not space.fits(1)


def test_beside_a_longer_prompt_only_the_entries_that_it_leaves_are_taken() -> None:
    space = Space(1000, 700)
    space.take(250)
    assert space.fits(100)
    assert not space.fits(100, beside=True)
    assert space.take(50, beside=True) == 700
