"""Prefixes: the dense keys and values of prompts, block by block, under hashes of their tokens.

A block's hash covers a salt and all tokens up to the block's end, so two prompts share exactly the blocks of their
common prefix. Nothing is lost: a prompt with cached blocks gives the same result as one that is prefilled whole.
"""

from array import array
from collections.abc import Hashable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile

from ringkv.base.kv import BLOCK
from ringkv.cache.rows import CacheRow
from ringkv.cache.store.pool import Pool


@lru_cache(maxsize=4)
def block_hashes(tokens: tuple[int, ...], salt: str) -> tuple[Hashable, ...]:
    """Return a hash for each whole block of a prompt. Clients with different salts share no blocks."""
    hashes: list[Hashable] = []
    last = blake2b(salt.encode(), digest_size=32).digest()
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        last = blake2b(last + array("q", tokens[start : start + BLOCK]).tobytes(), digest_size=32).digest()
        hashes.append(last)
    return tuple(hashes)


class Prefixes:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def cached(self, hashes: Sequence[Hashable]) -> Sequence[Hashable]:
        """Return the leading hashes whose blocks are stored."""
        return list(takewhile(self._pool.__contains__, hashes))

    def load(self, hashes: Sequence[Hashable], lane: CacheRow) -> None:
        """Fill the first entries of a lane with stored blocks."""
        for place, block in enumerate(hashes):
            self._pool.load(block, lane, place * BLOCK, BLOCK)
        self._touch(hashes)

    def save(self, hashes: Sequence[Hashable], start: int, stop: int, lane: CacheRow) -> None:
        """Save those blocks of a lane that tokens start .. stop-1 completed and that are not stored yet."""
        complete = hashes[: stop // BLOCK]
        self._touch(complete)
        for place in range(start // BLOCK, len(complete)):
            if hashes[place] not in self._pool:
                self._pool.save(hashes[place], lane, slice(place * BLOCK, (place + 1) * BLOCK))
        self._touch(complete)

    def _touch(self, hashes: Sequence[Hashable]) -> None:
        """Mark blocks as used, the first one last: a block needs all before it, so the pool drops later ones first."""
        for block in reversed(hashes):
            if block in self._pool:
                self._pool.touch(block)
