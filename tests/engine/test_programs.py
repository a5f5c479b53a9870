"""Which prefill graphs there are, and how the pieces of a chunk are cut for them."""

from collections.abc import Iterator

import pytest
import torch

from ringkv.engine.programs import Programs, sizes
from ringkv.graphs.graph import Eager

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def programs(chunk: int, device: torch.device) -> Programs:
    def unused(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        raise AssertionError

    return Programs(Eager(), sizes(chunk, device), 0, {}, {}, {}, {}, unused, {}, {})


def large_and_small(start: int, stop: int, room: int, large: int, small: int) -> Iterator[tuple[int, int]]:
    """By hand: large pieces if more than half of one is needed and it fits, else small ones."""
    while start < stop:
        size = large if stop - start > large // 2 and start + large <= room else small
        yield start, size
        start += size


@pytest.mark.parametrize("chunk", [64, 512, 500])
def test_a_cpu_takes_whole_chunks_and_pieces_of_64(chunk: int) -> None:
    made = programs(chunk, CPU)
    for tokens in range(1, chunk + 1):
        for start in (0, 64):
            for room in (1024, start + -(-tokens // 64) * 64):
                wanted = large_and_small(start, start + tokens, room, chunk, 64 if chunk % 64 == 0 else chunk)
                assert list(made.pieces(start, start + tokens, room)) == list(wanted)


def test_a_gpu_takes_halves_of_a_chunk_of_at_least_128_tokens() -> None:
    assert sizes(2048, GPU) == (128, 256, 512, 1024, 2048)
    assert sizes(2000, GPU) == (250, 500, 1000, 2000)
    assert sizes(100, GPU) == (100,)


def test_on_a_gpu_every_end_of_a_prompt_is_one_piece_that_is_more_than_half_full() -> None:
    made = programs(2048, GPU)
    for tokens in range(1, 2049):
        ((start, size),) = made.pieces(2048, 2048 + tokens, room=8192)
        assert start == 2048
        assert tokens <= size
        assert size < 2 * tokens or size == 128


def test_on_a_gpu_pieces_end_where_the_lane_ends() -> None:
    made = programs(2048, GPU)
    for start in range(0, 4096, 128):  # a prompt whose beginning is cached starts anywhere among them
        for stop in range(start + 1, min(start + 2048, 4096) + 1, 37):
            pieces = list(made.pieces(start, stop, room=4096))
            ends = [at + size for at, size in pieces]
            assert [at for at, _ in pieces] == [start, *ends[:-1]]
            assert stop <= ends[-1] <= 4096
