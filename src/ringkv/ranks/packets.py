"""PacketParts: a packet's entries, of one rank and of several. Packets between engines have the layout of one rank.

L layers of a group, H key-value heads of the model, of which each rank has some. If there are fewer than ranks,
neighbouring ranks have the same head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringkv.base.cache_spec import LayerGroup, SlotPart
from ringkv.base.config import EngineConfig
from ringkv.base.ranks import Rank
from ringkv.models.config import load_config
from ringkv.plan.footprint import item_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class PacketParts:
    """groups: of the whole model, in the format of slots. item: bytes of an element of the engine's dtype.

    capacity: entries of a slot.
    """

    groups: tuple[LayerGroup, ...]
    item: int
    ranks: int
    capacity: int

    @classmethod
    def of(cls, config: EngineConfig) -> "PacketParts":
        model = load_config(config.model_dir).with_slots(config.slot_format)
        groups = tuple(group.in_slots for group in model.groups)
        return cls(groups, item_bytes(config.dtype), config.rank.count, config.capacity)

    def merged(self, parts: Sequence[bytes | bytearray | memoryview], live: Sequence[int]) -> memoryview:
        """Return the entries of one rank from those of each. live: live entries of each group.

        Raises ValueError for parts of another size.
        """
        import numpy as np

        merged = np.empty(sum(part.bytes for _, part in self.each(live)), np.uint8)
        for index, part in enumerate(parts):
            blocks = [block[:, span.start : span.stop] for block, span in self._blocks(merged, live, index)]
            sizes = [block.size for block in blocks]
            if len(part) != sum(sizes):
                raise ValueError(f"rank {index} has {len(part):,} bytes; these entries take {sum(sizes):,}")
            raw = np.split(np.frombuffer(part, np.uint8), np.cumsum(sizes)[:-1])
            for block, values in zip(blocks, raw, strict=True):
                block[:] = values.reshape(block.shape)
        return memoryview(merged)  # type: ignore[arg-type]

    def split(self, entries: bytes | memoryview, live: Sequence[int]) -> list[bytes]:
        """Return the entries of each rank from those of a single rank. Raises ValueError for another size."""
        import numpy as np

        merged, size = np.frombuffer(entries, np.uint8), sum(part.bytes for _, part in self.each(live))
        if len(merged) != size:
            raise ValueError(f"the packet has {len(merged):,} bytes; these entries take {size:,}")
        return [
            b"".join(block[:, span.start : span.stop].tobytes() for block, span in self._blocks(merged, live, index))
            for index in range(self.ranks)
        ]

    def _blocks(
        self, merged: "NDArray[np.uint8]", live: Sequence[int], index: int
    ) -> "Iterator[tuple[NDArray[np.uint8], range]]":
        """Yield views [L, H, bytes] of one rank's entries, with the heads that a rank has of each."""
        first = 0
        for _, (_, layers, heads, size) in self.each(live):
            stop = first + layers * heads * size
            yield merged[first:stop].reshape(layers, heads, size), Rank(index, self.ranks).heads(heads)
            first = stop

    def each(self, live: Sequence[int]) -> Iterator[tuple[int, SlotPart]]:
        """Yield each tensor that `cache.body.CacheRow.export` writes, with the index of its group."""
        for index, (group, count) in enumerate(zip(self.groups, live, strict=True)):
            for part in group.parts(self.capacity, count, self.item):
                yield index, part
