"""Prefixes: the dense keys and values of prompts, block by block, under what their tokens hash to.

A block's name hashes all tokens up to its end and a salt, so two prompts share
exactly the blocks they begin with. Nothing is lost by it: a prompt that finds its blocks ends as if it had been read.
"""

from array import array
from collections.abc import Hashable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile

from ringkv.base.kv import BLOCK
from ringkv.cache.body import Row
from ringkv.cache.store.pool import Pool


@lru_cache(maxsize=4)
def names(tokens: tuple[int, ...], salt: str) -> tuple[Hashable, ...]:
    """One for each whole block of a prompt. Another salt gives other names: clients that may not share do not."""
    found: list[Hashable] = []
    name = blake2b(salt.encode(), digest_size=32).digest()
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        name = blake2b(name + array("q", tokens[start : start + BLOCK]).tobytes(), digest_size=32).digest()
        found.append(name)
    return tuple(found)


class Prefixes:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def known(self, names: Sequence[Hashable]) -> Sequence[Hashable]:
        """The first of the named blocks, as far as they are there."""
        return list(takewhile(self._pool.__contains__, names))

    def load(self, names: Sequence[Hashable], lane: Row) -> None:
        """Fill the first entries of a lane with blocks that are there."""
        for place, name in enumerate(names):
            self._pool.load(name, lane, place * BLOCK, BLOCK)
        self._touch(names)

    def save(self, names: Sequence[Hashable], start: int, stop: int, lane: Row) -> None:
        """Copy those blocks of a lane that tokens start .. stop-1 made whole and that are new."""
        whole = names[: stop // BLOCK]
        self._touch(whole)
        for place in range(start // BLOCK, len(whole)):
            if names[place] not in self._pool:
                self._pool.save(names[place], lane, slice(place * BLOCK, (place + 1) * BLOCK))
        self._touch(whole)

    def _touch(self, names: Sequence[Hashable]) -> None:
        """The first blocks are worth most, as none is found without those before it: they go last."""
        for name in reversed(names):
            if name in self._pool:
                self._pool.touch(name)
