"""Pool: a fixed part of host memory for runs of entries; those used longest ago make room for new ones.

L layers, H key-value heads, D head_dim. A run of n entries takes whole blocks of `base.kv.BLOCK`.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.kv import BLOCK


class _Run(NamedTuple):
    entries: int
    blocks: list[int]

    def pieces(self, entries: int) -> Iterator[tuple[int, slice]]:
        """The run's first `entries`: each block, and which of them it holds."""
        for block, start in zip(self.blocks, range(0, entries, BLOCK), strict=False):
            yield block, slice(start, min(start + BLOCK, entries))


class Pool:
    """At most `size` bytes of keys and values, of the type of `like`.

    Beside a CPU pages are taken when they are first written; for a GPU they are pinned, all at once.
    """

    def __init__(self, size: int, layers: int, heads: int, width: int, like: Tensor) -> None:
        shape = (2, layers, heads, BLOCK, width)
        count = size // (torch.Size(shape).numel() * like.element_size())
        self._planes = torch.empty(count, *shape, dtype=like.dtype, pin_memory=like.is_cuda)
        self._free = list(range(count))
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()  # used longest ago first

    @property
    def bytes(self) -> int:
        return self._planes.nbytes

    def __contains__(self, name: Hashable) -> bool:
        return name in self._runs

    def save(self, name: Hashable, keys: Tensor, values: Tensor, order: Tensor | None = None) -> bool:
        """Copy keys, values [L, H, n, D] under a name, instead of what it had; False where the pool is too small.

        order int64 [m]: which of the n to copy, and in which order; all as they are, if none is given.
        """
        entries = keys.shape[2] if order is None else len(order)
        blocks = -(-entries // BLOCK)
        if blocks > len(self._planes):
            return False
        self.drop(name)
        while len(self._free) < blocks:
            self.drop(next(iter(self._runs)))
        run = self._runs[name] = _Run(entries, [self._free.pop() for _ in range(blocks)])
        for block, part in run.pieces(entries):
            for plane, source in zip(self._planes[block], (keys, values), strict=True):
                some = source[:, :, part] if order is None else source.index_select(2, order[part])
                plane[:, :, : part.stop - part.start] = some
        return True

    def load(self, name: Hashable, keys: Tensor, values: Tensor) -> None:
        """Fill keys, values [L, H, n, D] with the first n entries of a run, which is then the last to go."""
        self.touch(name)
        for block, part in self._runs[name].pieces(keys.shape[2]):
            for plane, target in zip(self._planes[block], (keys, values), strict=True):
                target[:, :, part] = plane[:, :, : part.stop - part.start]

    def touch(self, name: Hashable) -> None:
        """Make it the last to go."""
        self._runs.move_to_end(name)

    def drop(self, name: Hashable) -> None:
        """Forget a run; one that is unknown is left alone."""
        if run := self._runs.pop(name, None):
            self._free += run.blocks
