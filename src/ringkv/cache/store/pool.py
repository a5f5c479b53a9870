"""Pool: a fixed part of host memory for runs of entries; those used longest ago make room for new ones.

L layers, H key-value heads, D head_dim. A run of n entries takes whole blocks of `BLOCK`.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64  # entries; the smallest piece of a prompt that is prefilled


class _Run(NamedTuple):
    entries: int
    blocks: list[int]

    def pieces(self, entries: int) -> Iterator[tuple[int, slice]]:
        """The run's first `entries`: each block, and which of them it holds."""
        for block, start in zip(self.blocks, range(0, entries, BLOCK), strict=False):
            yield block, slice(start, min(start + BLOCK, entries))


class Pool:
    """At most `size` bytes of keys and values, of the type of `like`. Pages are taken when they are first written."""

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

    def save(self, name: Hashable, keys: Tensor, values: Tensor) -> bool:
        """Copy keys, values [L, H, n, D] under a name, instead of what it had; False where the pool is too small."""
        entries = keys.shape[2]
        blocks = -(-entries // BLOCK)
        if blocks > len(self._planes):
            return False
        self.drop(name)
        while len(self._free) < blocks:
            self.drop(next(iter(self._runs)))
        run = self._runs[name] = _Run(entries, [self._free.pop() for _ in range(blocks)])
        for block, part in run.pieces(entries):
            for plane, source in zip(self._planes[block], (keys, values), strict=True):
                plane[:, :, : part.stop - part.start] = source[:, :, part]
        return True

    def load(self, name: Hashable, keys: Tensor, values: Tensor) -> None:
        """Fill keys, values [L, H, n, D] with the first n entries of a run, which is then the last to go."""
        self._runs.move_to_end(name)
        for block, part in self._runs[name].pieces(keys.shape[2]):
            for plane, target in zip(self._planes[block], (keys, values), strict=True):
                target[:, :, part] = plane[:, :, : part.stop - part.start]

    def drop(self, name: Hashable) -> None:
        """Forget a run; one that is unknown is left alone."""
        if run := self._runs.pop(name, None):
            self._free += run.blocks
