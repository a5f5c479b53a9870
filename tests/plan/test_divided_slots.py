"""Slots of latents that ranks divide, against figures worked by hand and those of the paper's deployment."""

import pytest

from ringkv.plan.divided_slots import Machine, divided_slots, is_divided
from ringkv.plan.shapes import known

GB, GiB = 10**9, 1 << 30
TOKEN = 61 * (512 + 64) * 2  # bytes of a token's latents
WEIGHTS = 671_026_419_200 // 16  # float8
SAMPLER = 6_997_280  # of a slot: 129,280 tokens x (54 + 1/8) bytes


def test_sixteen_ranks_of_64_gigabytes_hold_the_papers_batches() -> None:
    first, second, third = divided_slots(known("deepseek-r1"), Machine(16, 64 * GB, GiB))
    left = 64 * GB - GiB - WEIGHTS
    assert (first.weight_bytes, first.staging_bytes, first.full_slot_bytes) == (
        WEIGHTS,
        131_072 * TOKEN,
        131_072 * TOKEN,
    )
    assert (first.full, first.compressed) == (16 * 1, 16 * 4) == (16, 64)
    assert first.full == 16 * ((left - 131_072 * TOKEN) // (131_072 * TOKEN + 16 * SAMPLER))
    assert first.compressed == 16 * ((left - 131_072 * TOKEN) // (32_768 * TOKEN + 16 * SAMPLER))
    assert (second.full, second.compressed) == (16 * 3, 16 * 12)  # 16.4 GB: 4.72 GB each, 1.26 GB each
    assert (third.full, third.compressed) == (16 * 7, 16 * 27)  # 18.7 GB: 2.41 GB each, 0.688 GB each
    papers = [one.paper for one in (first, second, third)]
    assert [(paper.full, paper.compressed) for paper in papers if paper] == [(16, 64), (32, 128), (64, 256)]


def test_the_papers_largest_batches_fit_at_every_context() -> None:
    for one in divided_slots(known("deepseek-r1"), Machine(16, 64 * GB, GiB)):
        assert one.paper
        assert one.full >= one.paper.full
        assert one.compressed >= one.paper.compressed


def test_eight_ranks_of_80_gigabytes_do_not_hold_the_weights() -> None:
    """They are 83.9 GB a rank."""
    assert {(one.full, one.compressed) for one in divided_slots(known("deepseek-r1"), Machine(8, 80 * GB))} == {(0, 0)}


def test_two_sockets_hold_int8_weights_and_eighteen_full_contexts_each() -> None:
    first = divided_slots(known("deepseek-r1"), Machine(2, 512 * GB, GiB, "int8"))[0]
    left = 512 * GB - GiB - 671_026_419_200 // 2 - 131_072 * TOKEN
    assert first.full == 2 * (left // (131_072 * TOKEN + 2 * SAMPLER)) == 36
    assert first.paper is None


@pytest.mark.parametrize(
    ("name", "ranks", "divided"),
    [("deepseek-r1", 16, True), ("deepseek-r1", 1, False), ("llama-3.1-8b", 2, False)],
)
def test_only_several_ranks_with_latents_divide_slots(name: str, ranks: int, divided: bool) -> None:
    assert is_divided(known(name), ranks) == divided
