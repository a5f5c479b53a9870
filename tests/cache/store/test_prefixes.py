import random

import pytest
import torch

from ringkv.base.kv import BLOCK
from ringkv.cache.store.pool import Pool
from ringkv.cache.store.prefixes import Prefixes, block_hashes
from tests.cache.rows import group, row

GROUPS = [group(1, 2, 4)]
TOKENS = tuple(random.Random(0).choices(range(1000), k=5 * BLOCK + 3))


def test_two_prompts_share_the_hashes_of_their_common_first_blocks() -> None:
    other = (*TOKENS[: 2 * BLOCK + 1], -1, *TOKENS[2 * BLOCK + 2 :])
    assert len(block_hashes(TOKENS, "")) == 5
    same = [ours == theirs for ours, theirs in zip(block_hashes(TOKENS, ""), block_hashes(other, ""), strict=True)]
    assert same == [True, True, False, False, False]


def test_with_another_salt_no_hash_is_the_same() -> None:
    assert not set(block_hashes(TOKENS, "a")) & set(block_hashes(TOKENS, "b"))


@pytest.mark.parametrize("lost", range(5))
def test_what_follows_a_lost_block_is_not_loaded(lost: int) -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(10**6, GROUPS, keys)
    it, hashes = Prefixes(pool), block_hashes(TOKENS, "")
    it.save(hashes, 0, len(TOKENS), row(keys, values))
    pool.drop(hashes[lost])
    found = torch.zeros(2, 1, 2, len(TOKENS), 4)
    it.load(it.cached(hashes), row(*found))
    assert it.cached(hashes) == list(hashes[:lost])
    assert torch.equal(found[0][:, :, : lost * BLOCK], keys[:, :, : lost * BLOCK])
    assert torch.equal(found[1][:, :, : lost * BLOCK], values[:, :, : lost * BLOCK])
    assert not found[:, :, :, lost * BLOCK :].any()


def test_a_prompts_last_blocks_are_dropped_first() -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(5 * BLOCK * 2 * 2 * 4 * 4, GROUPS, keys)
    it, hashes = Prefixes(pool), block_hashes(TOKENS, "")
    it.save(hashes, 0, len(TOKENS), row(keys, values))
    pool.save("another", row(keys, values), slice(2 * BLOCK))
    assert [block in pool for block in hashes] == [True, True, True, False, False]


def test_blocks_are_saved_once_they_are_complete() -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(10**6, GROUPS, keys)
    it, hashes = Prefixes(pool), block_hashes(TOKENS, "")
    it.save(hashes, 0, 2 * BLOCK - 1, row(keys, values))
    assert [block in pool for block in hashes] == [True, False, False, False, False]
    it.save(hashes, 2 * BLOCK - 1, 3 * BLOCK, row(keys, values))
    assert [block in pool for block in hashes] == [True, True, True, False, False]


def test_a_prompt_longer_than_the_pool_keeps_its_beginning() -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(3 * BLOCK * 2 * 2 * 4 * 4, GROUPS, keys)
    it, hashes = Prefixes(pool), block_hashes(TOKENS, "")
    for place in range(5):
        it.save(hashes, place * BLOCK, (place + 1) * BLOCK, row(keys, values))
    assert len(it.cached(hashes)) == 2
