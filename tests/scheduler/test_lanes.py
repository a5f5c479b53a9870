"""Slots are handed out evenly over ranks; compared with counts of those taken."""

from collections import Counter
from random import Random

from ringkv.scheduler.lanes import FreeSlots


def test_the_lowest_free_slot_is_taken_if_slots_are_not_divided() -> None:
    free = FreeSlots(4)
    assert [free.take() for _ in range(3)] == [0, 1, 2]
    free.give(1)
    assert (len(free), sorted(free), free.take()) == (2, [1, 3], 1)


def test_ranks_differ_by_at_most_one_slot_while_requests_only_come() -> None:
    free = FreeSlots(12, ranks=4)
    taken = [free.take() for _ in range(12)]
    for count in range(1, 13):
        each = Counter(slot % 4 for slot in taken[:count])
        assert max(each.values()) == -(-count // 4)
    assert sorted(taken) == [*range(12)]


def test_a_slot_is_taken_from_a_rank_that_has_the_fewest_whatever_has_left() -> None:
    free, taken, random = FreeSlots(12, ranks=4), [], Random(1)
    for _ in range(300):
        if taken and (len(taken) == 12 or random.random() < 0.5):
            free.give(taken.pop(random.randrange(len(taken))))
            continue
        possible = {slot % 4 for slot in free}
        each = Counter(slot % 4 for slot in taken)
        taken.append(free.take())
        assert each[taken[-1] % 4] == min(each[rank] for rank in possible)
    assert sorted([*taken, *free]) == [*range(12)]
