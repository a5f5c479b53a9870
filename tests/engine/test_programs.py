"""How many rows graphs have, and how the pieces of a chunk are cut for them if their sizes are fixed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ringkv.base.ranks import Rank
from ringkv.engine.programs import Programs
from ringkv.engine.sizes import BySize, EngineSizes, Sizes, fixed_sizes
from ringkv.graphs.graph import Eager
from tests.engine import tiny

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def programs(chunk: int, device: torch.device) -> Programs:
    def unused(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        raise AssertionError

    passes, none = BySize(Sizes(fixed_sizes(chunk, device)), {}), BySize(Sizes(most=0), {})
    nothing: Any = None
    return Programs(nothing, nothing, Eager(), False, 64, 0, passes, none, none, none, unused, {}, {})


def large_and_small(start: int, stop: int, large: int, small: int) -> Iterator[tuple[int, int]]:
    """By hand: large pieces if more than half of one is needed, else small ones."""
    while start < stop:
        size = large if stop - start > large // 2 else small
        yield start, size
        start += size


@pytest.mark.parametrize("chunk", [64, 512, 500])
def test_a_cpu_takes_whole_chunks_and_pieces_of_64(chunk: int) -> None:
    made = programs(chunk, CPU)
    for tokens in range(1, chunk + 1):
        for start in (0, 64):
            wanted = large_and_small(start, start + tokens, chunk, 64 if chunk % 64 == 0 else chunk)
            assert list(made.pieces(start, start + tokens)) == list(wanted)


def test_a_gpu_takes_halves_of_a_chunk_of_at_least_128_tokens() -> None:
    assert fixed_sizes(2048, GPU) == (128, 256, 512, 1024, 2048)
    assert fixed_sizes(2000, GPU) == (250, 500, 1000, 2000)
    assert fixed_sizes(100, GPU) == (100,)


def test_on_a_gpu_every_end_of_a_prompt_is_one_piece_that_is_more_than_half_full() -> None:
    made = programs(2048, GPU)
    for tokens in range(1, 2049):
        ((start, size),) = made.pieces(2048, 2048 + tokens)
        assert start == 2048
        assert tokens <= size
        assert size < 2 * tokens or size == 128


class Weights:
    """Only what decides about sizes."""

    def __init__(self, packed: bool, has_groups: bool = False) -> None:
        self.is_packed, self.rounds_few_rows_differently = packed, has_groups


def of(slots: int, drafts: int = 0, packed: bool = True, has_groups: bool = False, slot_ranks: int = 1) -> EngineSizes:
    ranks = {"rank": Rank(0, slot_ranks), "attention_parallel": "slots"}
    config = tiny.config(Path(), chunk=512, slots=slots, speculate=drafts, **ranks)
    with patch("ringkv.engine.sizes.is_native", lambda name: True):
        return EngineSizes.of(config, Weights(packed, has_groups))  # type: ignore[arg-type]


def test_our_operators_run_any_number_of_rows_whatever_the_slots() -> None:
    assert of(1) == of(64) == EngineSizes(Sizes(), Sizes(), Sizes(most=0), Sizes(), rides=True)
    assert [Sizes().fit(rows) for rows in (1, 3, 500)] == [1, 3, 500]


def test_other_operators_run_fixed_numbers_of_rows() -> None:
    found = of(6, drafts=3, packed=False)
    assert found == EngineSizes(Sizes((64, 512)), Sizes((6,)), Sizes((6,)), Sizes((6, 24)), rides=False)
    assert [found.passes.fit(rows) for rows in (1, 64, 65, 512, 513)] == [64, 64, 512, 512, None]
    assert of(9, drafts=3, packed=False).drafts.none  # 36 tokens are too many


def test_with_weights_in_groups_all_steps_of_an_engine_have_few_rows_or_none_have() -> None:
    few, many = of(8, drafts=3, has_groups=True), of(9, drafts=1, has_groups=True)
    assert (few.rides, many.rides) == (False, True)
    assert [few.decode.fit(8), few.passes.fit(2), few.drafts.fit(2), few.drafts.fit(3)] == [8, 9, 2, None]
    assert [many.decode.fit(1), many.passes.fit(2), many.drafts.fit(1), many.drafts.fit(17)] == [9, 9, 9, None]


def test_a_step_of_ranks_that_divide_the_slots_has_as_many_rows_of_each() -> None:
    divided = of(24, drafts=1, slot_ranks=6)
    assert [divided.decode.fit(rows) for rows in (1, 6, 7)] == [6, 6, 12]
    assert [divided.drafts.fit(rows) for rows in (12, 13)] == [12, None]  # 36 tokens are too many
    assert divided.rides
    assert of(24, has_groups=True, slot_ranks=6).decode.fit(1) == 12  # at least 9
    assert of(24, drafts=7, slot_ranks=6).drafts.none
    assert of(6, packed=False, slot_ranks=6).decode.fit(1) == 6


def test_a_step_with_drafts_has_at_most_32_tokens() -> None:
    sizes = of(64, drafts=3).drafts
    assert (sizes.fit(8), sizes.fit(9)) == (8, None)
