"""Pool: host memory of a fixed size for runs of entries. The least recently used runs are dropped for new ones.

A run takes whole blocks, each of the bytes of `base.kv.BLOCK` plain entries of every group of layers.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.kv import BLOCK
from ringkv.cache.body import Entries
from ringkv.cache.earlier import Earlier
from ringkv.cache.rows import CacheRow
from ringkv.cache.store.run import Run
from ringkv.cache.store.stored_row import StoredRow, places, run_bytes, tensors


class Pool:
    """At most `size` bytes of entries: plain ones of the dtype of `like`, and those of slots as slots store them.

    On a CPU, pages are committed when they are first written. For a GPU, all are pinned at once.
    """

    def __init__(self, size: int, groups: Sequence[LayerGroup], like: Tensor) -> None:
        block = BLOCK * sum(group.elements for group in groups) * like.element_size()
        count = size // block
        pinned = like.is_cuda and count > 0
        self._memory = torch.empty(count, block, dtype=torch.uint8, pin_memory=pinned)
        self._free = list(range(count))
        self._rows: OrderedDict[Hashable, StoredRow] = OrderedDict()  # least recently used first

    @property
    def bytes(self) -> int:
        return self._memory.nbytes

    def __contains__(self, name: Hashable) -> bool:
        return name in self._rows

    def save(self, name: Hashable, source: CacheRow, entries: Entries) -> bool:
        """Copy these entries of a row under a name, replacing its earlier run; False if the pool is too small."""
        count = len(range(*entries.indices(source.entries))) if isinstance(entries, slice) else len(entries)
        groups = places(source, count)
        blocks = -(-run_bytes(groups) // self._memory.shape[1])
        if blocks > len(self._memory):
            return False
        self.drop(name)
        while len(self._free) < blocks:
            self.drop(next(iter(self._rows)))
        run = Run(self._memory, [self._free.pop() for _ in range(blocks)])
        try:
            run.write(tensors(source, entries))
        except BaseException:
            self._free += run.blocks
            raise
        self._rows[name] = StoredRow(run, groups)
        return True

    def load(self, name: Hashable, target: CacheRow, first: int, count: int) -> tuple[Sequence[Earlier], ...]:
        """Copy the first `count` entries of a run to a row, starting at its entry `first`; the run counts as used.

        Returns what `CacheRow.fill` takes if they were encoded.
        """
        self.touch(name)
        self._rows[name].load(target, first, count)
        return self._rows[name].earlier(target, count)

    def touch(self, name: Hashable) -> None:
        """Mark a run as the most recently used."""
        self._rows.move_to_end(name)

    def drop(self, name: Hashable) -> None:
        """Free a run; an unknown name is ignored."""
        if row := self._rows.pop(name, None):
            self._free += row.run.blocks
            row.run.blocks.clear()
