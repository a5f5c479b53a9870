"""Pool: host memory of a fixed size for runs of entries. The least recently used runs are dropped for new ones.

A run of n entries takes whole blocks of `base.kv.BLOCK`. A block holds entries of every group of layers.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.kv import BLOCK
from ringkv.cache.body import Body, CacheRow, Entries


class _Run(NamedTuple):
    entries: int
    blocks: list[int]

    def pieces(self, entries: int) -> Iterator[tuple[int, slice]]:
        """Yield each block of the run's first `entries`, and the slice of them that it holds."""
        for block, start in zip(self.blocks, range(0, entries, BLOCK), strict=False):
            yield block, slice(start, min(start + BLOCK, entries))


class Pool:
    """At most `size` bytes of entries, of the dtype of `like`.

    On a CPU, pages are committed when they are first written. For a GPU, all are pinned at once.
    """

    def __init__(self, size: int, groups: Sequence[LayerGroup], like: Tensor) -> None:
        count = size // (BLOCK * sum(group.elements for group in groups) * like.element_size())
        allocate = partial(torch.empty, dtype=like.dtype, pin_memory=like.is_cuda and count > 0)
        self._bodies = tuple(Body.allocate(group, count, BLOCK, allocate) for group in groups)
        self._count = count
        self._free = list(range(count))
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()  # least recently used first

    @property
    def bytes(self) -> int:
        return sum(body.bytes for body in self._bodies)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._runs

    def save(self, name: Hashable, source: CacheRow, entries: Entries) -> bool:
        """Copy these entries of a row under a name, replacing its earlier run; False if the pool is too small."""
        count = len(range(*entries.indices(source.entries))) if isinstance(entries, slice) else len(entries)
        blocks = -(-count // BLOCK)
        if blocks > self._count:
            return False
        self.drop(name)
        while len(self._free) < blocks:
            self.drop(next(iter(self._runs)))
        run = self._runs[name] = _Run(count, [self._free.pop() for _ in range(blocks)])
        for block, part in run.pieces(count):
            self._block(block).write(0, source.read(_part_of(entries, part)))
        return True

    def load(self, name: Hashable, target: CacheRow, first: int, count: int) -> None:
        """Copy the first `count` entries of a run to a row, starting at its entry `first`; the run counts as used."""
        self.touch(name)
        for block, part in self._runs[name].pieces(count):
            target.write(first + part.start, self._block(block).read(slice(part.stop - part.start)))

    def touch(self, name: Hashable) -> None:
        """Mark a run as the most recently used."""
        self._runs.move_to_end(name)

    def drop(self, name: Hashable) -> None:
        """Free a run; an unknown name is ignored."""
        if run := self._runs.pop(name, None):
            self._free += run.blocks

    def _block(self, index: int) -> CacheRow:
        return CacheRow(self._bodies, index)


def _part_of(entries: Entries, part: slice) -> Entries:
    """Return the entries at the places `part` of `entries`."""
    if isinstance(entries, Tensor):
        return entries[part]
    return slice((entries.start or 0) + part.start, (entries.start or 0) + part.stop)
