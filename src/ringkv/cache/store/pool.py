"""Pool: host memory of a fixed size for runs of entries; those used longest ago make room for new ones.

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
from ringkv.cache.body import Body, Entries, Row


class _Run(NamedTuple):
    entries: int
    blocks: list[int]

    def pieces(self, entries: int) -> Iterator[tuple[int, slice]]:
        """The run's first `entries`: each block, and which of them it holds."""
        for block, start in zip(self.blocks, range(0, entries, BLOCK), strict=False):
            yield block, slice(start, min(start + BLOCK, entries))


class Pool:
    """At most `size` bytes of entries, of the dtype of `like`.

    Beside a CPU pages are taken when they are first written; for a GPU they are pinned, all at once.
    """

    def __init__(self, size: int, groups: Sequence[LayerGroup], like: Tensor) -> None:
        count = size // (BLOCK * sum(group.elements for group in groups) * like.element_size())
        allocate = partial(torch.empty, dtype=like.dtype, pin_memory=like.is_cuda and count > 0)
        self._bodies = tuple(Body.allocate(group, count, BLOCK, allocate) for group in groups)
        self._count = count
        self._free = list(range(count))
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()  # used longest ago first

    @property
    def bytes(self) -> int:
        return sum(body.bytes for body in self._bodies)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._runs

    def save(self, name: Hashable, source: Row, entries: Entries) -> bool:
        """Copy these entries of a row under a name, instead of what it had; False if the pool is too small."""
        count = len(range(*entries.indices(source.entries))) if isinstance(entries, slice) else len(entries)
        blocks = -(-count // BLOCK)
        if blocks > self._count:
            return False
        self.drop(name)
        while len(self._free) < blocks:
            self.drop(next(iter(self._runs)))
        run = self._runs[name] = _Run(count, [self._free.pop() for _ in range(blocks)])
        for block, part in run.pieces(count):
            self._block(block).write(0, source.read(_some(entries, part)))
        return True

    def load(self, name: Hashable, target: Row, first: int, count: int) -> None:
        """Copy the first `count` entries of a run to a row's `first` ...; the run is then the last to go."""
        self.touch(name)
        for block, part in self._runs[name].pieces(count):
            target.write(first + part.start, self._block(block).read(slice(part.stop - part.start)))

    def touch(self, name: Hashable) -> None:
        """Make it the last to go."""
        self._runs.move_to_end(name)

    def drop(self, name: Hashable) -> None:
        """Forget a run; one that is unknown is left alone."""
        if run := self._runs.pop(name, None):
            self._free += run.blocks

    def _block(self, index: int) -> Row:
        return Row(self._bodies, index)


def _some(entries: Entries, part: slice) -> Entries:
    """Those at the places `part` among these entries."""
    if isinstance(entries, Tensor):
        return entries[part]
    return slice((entries.start or 0) + part.start, (entries.start or 0) + part.stop)
