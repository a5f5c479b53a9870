"""Slots of latents that ranks divide, against figures worked by hand and those of the paper's deployment."""

import pytest

from ringkv.plan.rank_costs import RankMachine, divided_slots
from ringkv.plan.shapes import known

GB, GiB = 10**9, 1 << 30
TOKEN = 61 * (512 + 64) * 2  # bytes of a token's latents
WEIGHTS = 671_026_419_200 // 16  # float8
QUERIES = 61 * 8 * (512 + 64) * 2 * 32  # bytes of a prompt's last 32 queries, of 8 heads on a rank
SAMPLER = 6_997_280  # of a slot: 129,280 tokens x (54 + 1/8) bytes


def slots(machine: RankMachine) -> list[tuple[int, int]]:
    """Return the slots for each context, full and compressed."""
    found = divided_slots(known("deepseek-r1"), machine)
    return [(full.slots, compressed.slots) for full, compressed in (one.caches for one in found)]


def test_sixteen_ranks_of_64_gigabytes_hold_the_papers_batches() -> None:
    machine = RankMachine(16, 64 * GB, GiB)
    first = divided_slots(known("deepseek-r1"), machine)[0]
    full, compressed = first.caches
    assert (first.weight_bytes, first.staging_bytes) == (WEIGHTS, 131_072 * TOKEN + QUERIES)
    assert (full.slot_bytes, compressed.slot_bytes) == (131_072 * TOKEN, 32_768 * TOKEN)
    left = 64 * GB - GiB - WEIGHTS - 131_072 * TOKEN - QUERIES
    assert full.slots == 16 * (left // (131_072 * TOKEN + 16 * SAMPLER)) == 16
    assert compressed.slots == 16 * (left // (32_768 * TOKEN + 16 * SAMPLER)) == 64
    # 64k: 16.4 GB for slots of 4.72 GB and 1.26 GB. 32k: 18.7 GB for slots of 2.41 GB and 0.688 GB.
    assert slots(machine)[1:] == [(16 * 3, 16 * 12), (16 * 7, 16 * 27)]


def test_the_papers_largest_batches_fit_at_every_context() -> None:
    """Table 5 of SnapStream (arXiv 2511.03092)."""
    found = divided_slots(known("deepseek-r1"), RankMachine(16, 64 * GB, GiB))
    papers = [[cache.paper.slots for cache in one.caches if cache.paper] for one in found]
    assert papers == [[16, 64], [32, 128], [64, 256]]
    assert all(cache.paper and cache.slots >= cache.paper.slots for one in found for cache in one.caches)


def test_sixteen_ranks_of_80_gigabytes_hold_more() -> None:
    """27.8 GB for slots of 9.32 GB and 2.42 GB."""
    assert slots(RankMachine(16, 80 * GB, GiB))[0] == (16 * 2, 16 * 11)


def test_eight_ranks_of_80_gigabytes_do_not_hold_the_weights() -> None:
    """They are 83.9 GB a rank."""
    assert set(slots(RankMachine(8, 80 * GB))) == {(0, 0)}


def test_two_sockets_hold_int8_weights_and_eighteen_full_contexts_each() -> None:
    """166 GB for slots of 9.23 GB and 2.32 GB. Figures of the paper stand beside its own machine only."""
    machine = RankMachine(2, 512 * GB, GiB, "int8")
    assert slots(machine)[0] == (2 * 18, 2 * 71)
    assert divided_slots(known("deepseek-r1"), machine)[0].caches[0].paper is None


@pytest.mark.parametrize(
    ("name", "ranks", "divided"),
    [("deepseek-r1", 16, True), ("deepseek-r1", 1, False), ("llama-3.1-8b", 2, False)],
)
def test_only_several_ranks_with_latents_divide_slots(name: str, ranks: int, divided: bool) -> None:
    assert bool(divided_slots(known(name), RankMachine(ranks, 64 * GB))) == divided
