import random

import pytest
import torch

from ringkv.base.kv import BLOCK
from ringkv.cache.store.pool import Pool
from ringkv.cache.store.prefixes import Prefixes, names
from tests.cache.rows import group, row

GROUPS = [group(1, 2, 4)]
TOKENS = tuple(random.Random(0).choices(range(1000), k=5 * BLOCK + 3))


def test_two_prompts_share_the_names_of_the_blocks_they_begin_with() -> None:
    other = (*TOKENS[: 2 * BLOCK + 1], -1, *TOKENS[2 * BLOCK + 2 :])
    assert len(names(TOKENS, "")) == 5
    same = [mine == theirs for mine, theirs in zip(names(TOKENS, ""), names(other, ""), strict=True)]
    assert same == [True, True, False, False, False]


def test_with_another_salt_no_name_is_the_same() -> None:
    assert not set(names(TOKENS, "a")) & set(names(TOKENS, "b"))


@pytest.mark.parametrize("lost", range(5))
def test_what_follows_a_lost_block_is_not_loaded(lost: int) -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(10**6, GROUPS, keys)
    it, known = Prefixes(pool), names(TOKENS, "")
    it.save(known, 0, len(TOKENS), row(keys, values))
    pool.drop(known[lost])
    found = torch.zeros(2, 1, 2, len(TOKENS), 4)
    it.load(it.known(known), row(*found))
    assert it.known(known) == list(known[:lost])
    assert torch.equal(found[0][:, :, : lost * BLOCK], keys[:, :, : lost * BLOCK])
    assert torch.equal(found[1][:, :, : lost * BLOCK], values[:, :, : lost * BLOCK])
    assert not found[:, :, :, lost * BLOCK :].any()


def test_a_prompts_end_goes_before_its_beginning() -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(5 * BLOCK * 2 * 2 * 4 * 4, GROUPS, keys)
    it, known = Prefixes(pool), names(TOKENS, "")
    it.save(known, 0, len(TOKENS), row(keys, values))
    pool.save("another", row(keys, values), slice(2 * BLOCK))
    assert [name in pool for name in known] == [True, True, True, False, False]


def test_blocks_are_saved_once_they_are_whole() -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(10**6, GROUPS, keys)
    it, known = Prefixes(pool), names(TOKENS, "")
    it.save(known, 0, 2 * BLOCK - 1, row(keys, values))
    assert [name in pool for name in known] == [True, False, False, False, False]
    it.save(known, 2 * BLOCK - 1, 3 * BLOCK, row(keys, values))
    assert [name in pool for name in known] == [True, True, True, False, False]


def test_a_prompt_longer_than_the_pool_keeps_its_beginning() -> None:
    keys, values = torch.randn(2, 1, 2, len(TOKENS), 4)
    pool = Pool(3 * BLOCK * 2 * 2 * 4 * 4, GROUPS, keys)
    it, known = Prefixes(pool), names(TOKENS, "")
    for place in range(5):
        it.save(known, place * BLOCK, (place + 1) * BLOCK, row(keys, values))
    assert len(it.known(known)) == 2
