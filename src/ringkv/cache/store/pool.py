"""Pool: host memory of a fixed size for entries of rows. The least recently used rows are dropped for new ones.

A saved row takes whole blocks, each of the bytes of `base.kv.BLOCK` plain entries of every group of layers.
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
from ringkv.cache.store.stored_row import Blocks, StoredRow, places, tensors


class Pool:
    """At most `size` bytes of entries: plain ones of the dtype of `like`, and those of slots as slots store them.

    On a CPU, pages are committed when they are first written. For a GPU, all are pinned at once.
    """

    def __init__(self, size: int, groups: Sequence[LayerGroup], like: Tensor) -> None:
        block = BLOCK * sum(group.token_bytes(like.element_size()) for group in groups)
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
        """Copy these entries of a row under a name, replacing what it had; False if the pool is too small."""
        count = entries.stop - (entries.start or 0) if isinstance(entries, slice) else len(entries)
        groups = places(source, count)
        needed = -(-groups[-1].stop // self._memory.shape[1])
        if needed > len(self._memory):
            return False
        self.drop(name)
        while len(self._free) < needed:
            self.drop(next(iter(self._rows)))
        blocks = Blocks(self._memory, [self._free.pop() for _ in range(needed)])
        try:
            blocks.write(tensors(source, entries))
        except BaseException:
            self._free += blocks.numbers
            raise
        self._rows[name] = StoredRow(blocks, groups)
        return True

    def load(self, name: Hashable, target: CacheRow, first: int, count: int) -> tuple[Sequence[Earlier], ...]:
        """Copy the first `count` entries under a name to a row, starting at its entry `first`; the name counts as used.

        Returns what `CacheRow.fill` takes if they were encoded.
        """
        self.touch(name)
        return self._rows[name].load(target, first, count)

    def touch(self, name: Hashable) -> None:
        """Mark a name as the most recently used."""
        self._rows.move_to_end(name)

    def drop(self, name: Hashable) -> None:
        """Free the blocks of a name; an unknown one is ignored."""
        if row := self._rows.pop(name, None):
            self._free += row.blocks.numbers
            row.blocks.numbers.clear()
