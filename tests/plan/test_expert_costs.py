"""Costs of experts on ranks, against figures worked by hand and random ones."""

import random

import pytest

from ringkv.plan.rank_costs import busiest, expert_costs
from ringkv.plan.shapes import ExpertShape, known

R1 = 58 * 3 * 7168 * 2048  # elements of one expert, in all layers that have some


def test_the_catalogue_knows_the_experts_of_a_model() -> None:
    assert known("deepseek-r1").experts == ExpertShape(256, 8, 7168, 256 * R1)
    assert known("mixtral-8x7b").experts == ExpertShape(8, 2, 4096, 8 * 32 * 3 * 4096 * 14336)
    assert known("llama-3.1-8b").experts is None


def test_ranks_read_a_share_of_the_chosen_experts_or_their_own() -> None:
    """Mixtral on 4 ranks, two slots: 8 x (1 - (3/4)^2) = 3.5 experts are chosen."""
    experts = known("mixtral-8x7b").experts
    assert experts
    one, costs = 32 * 3 * 4096 * 14336, expert_costs(experts, "int8", 4, 2)
    assert (costs.tensor_bytes, costs.expert_bytes) == (2 * one, 2 * one)
    assert costs.tensor_read == 3.5 * one / 4
    assert costs.expert_read == pytest.approx(busiest(2, 7 / 16, 4) * one)
    assert costs.exchanged == 2 * 4096 * 4


def test_one_rank_reads_every_chosen_expert_and_exchanges_nothing() -> None:
    costs = expert_costs(ExpertShape(8, 2, 16, 8 * 100), "int8", 1, 2)
    assert (costs.tensor_bytes, costs.expert_bytes) == (800, 800)
    assert (costs.tensor_read, costs.expert_read) == (350, 350)
    assert costs.exchanged == 0


def test_a_rank_may_have_one_expert_more_than_its_share() -> None:
    costs = expert_costs(ExpertShape(8, 2, 16, 8 * 100), "int8", 3, 1)
    assert (costs.tensor_bytes, costs.expert_bytes) == (267, 300)


@pytest.mark.parametrize(("experts", "likely", "ranks"), [(16, 1 / 32, 16), (2, 0.4, 4), (32, 0.9, 8), (3, 1.0, 2)])
def test_the_busiest_rank_has_the_mean_of_the_largest_of_random_draws(experts: int, likely: float, ranks: int) -> None:
    draw = random.Random(1)

    def largest() -> int:
        return max(sum(draw.random() < likely for _ in range(experts)) for _ in range(ranks))

    mean = sum(largest() for _ in range(2000)) / 2000
    assert busiest(experts, likely, ranks) == pytest.approx(mean, rel=0.05)
