import pytest
import torch
from torch import Tensor

from ringkv.base.kv import BLOCK
from ringkv.cache.store.pool import Pool
from tests.cache.rows import group, row

LAYERS, HEADS, WIDTH = 2, 3, 8
GROUPS = [group(LAYERS, HEADS, WIDTH)]
ENTRY = 2 * LAYERS * HEADS * WIDTH * 4  # bytes


def pool(blocks: int) -> Pool:
    return Pool(blocks * BLOCK * ENTRY, GROUPS, torch.empty(0))


def run(entries: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, LAYERS, HEADS, entries, WIDTH, generator=generator)
    return keys, values


def save(it: Pool, name: str, keys: Tensor, values: Tensor) -> bool:
    return it.save(name, row(keys, values), slice(keys.shape[2]))


def loaded(it: Pool, name: str, entries: int) -> tuple[Tensor, Tensor]:
    found = torch.zeros(2, LAYERS, HEADS, entries, WIDTH)
    it.load(name, row(*found), 0, entries)
    return found[0], found[1]


@pytest.mark.parametrize("entries", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_what_was_saved_is_loaded(entries: int) -> None:
    it = pool(5)
    save(it, "a", *run(entries, 1))
    save(it, "b", *run(BLOCK, 2))
    for got, saved in zip(loaded(it, "a", entries), run(entries, 1), strict=True):
        assert torch.equal(got, saved)


def test_the_beginning_of_a_run_can_be_loaded_alone() -> None:
    it = pool(3)
    save(it, "a", *run(2 * BLOCK + 5))
    assert torch.equal(loaded(it, "a", BLOCK + 7)[1], run(2 * BLOCK + 5)[1][:, :, : BLOCK + 7])


def test_the_least_recently_used_runs_are_dropped() -> None:
    it = pool(3)
    for name in "abc":
        save(it, name, *run(BLOCK))
    loaded(it, "a", BLOCK)
    save(it, "d", *run(BLOCK))
    assert [name for name in "abcd" if name in it] == ["a", "c", "d"]
    save(it, "e", *run(2 * BLOCK))
    assert [name for name in "abcde" if name in it] == ["d", "e"]


def test_a_pool_takes_no_more_than_its_size() -> None:
    size = 3 * BLOCK * ENTRY + 7
    assert Pool(size, GROUPS, torch.empty(0)).bytes == 3 * BLOCK * ENTRY
    it = pool(2)
    assert save(it, "a", *run(2 * BLOCK))
    assert not save(it, "b", *run(2 * BLOCK + 1))
    assert "a" in it


def test_blocks_of_a_run_that_could_not_be_written_are_free_again() -> None:
    it = pool(2)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            it.save("a", row(*run(BLOCK)), torch.tensor([BLOCK]))
    assert save(it, "b", *run(2 * BLOCK))


def test_a_name_that_is_saved_again_has_the_last_run() -> None:
    it = pool(2)
    save(it, "a", *run(2 * BLOCK, 1))
    save(it, "a", *run(BLOCK, 2))
    assert torch.equal(loaded(it, "a", BLOCK)[0], run(BLOCK, 2)[0])
    assert save(it, "b", *run(BLOCK))
    assert "a" in it  # the blocks of its first run are free
