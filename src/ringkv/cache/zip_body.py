"""ZipBody: slots in the format zipcache. Its planes are the tensors of `ZipSlots`; beside them are the counts.

L layers of a group, R rows, H key-value heads, n entries, D elements of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.zip_sizes import ZipSizes
from ringkv.cache.body import Body, WholeRows
from ringkv.cache.formats.earlier import Earlier
from ringkv.cache.formats.storage import Allocate
from ringkv.kernels.take_rows import take_rows
from ringkv.kernels.zip_slots import ZipSlots, allocate
from ringkv.kernels.zip_tokens import fill


@dataclass(frozen=True)
class ZipBody(WholeRows):
    """capacity: C, entries that a layout may have."""

    capacity: int = 0

    @classmethod
    def allocate(cls, group: LayerGroup, rows: int, entries: int, allocate_tensor: Allocate) -> "ZipBody":
        key = group.spec.key
        assert group.spec.value == key, "keys and values have the same heads"
        shape = len(group.layers), rows, key.heads
        *planes, counts = allocate(shape, key.width, ZipSizes.of(entries), allocate_tensor)
        return cls(group, tuple(planes), (counts,), entries)

    @property
    def entries(self) -> int:
        return self.capacity

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry in a chunk of 100, all layers."""
        return self.group.token_bytes(self.planes[0].element_size())

    def take(
        self,
        row: int,
        source: Body,
        source_row: int,
        index: Tensor,
        fixed: int = 0,
        saliency: Tensor | None = None,
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """Fill a row, layer by layer, to keep the temporary vectors few. Tokens of the ring go in by age."""
        assert saliency is not None
        for layer, (own, got) in enumerate(zip(*_by_age(index, saliency, fixed), strict=True)):
            keys, values = (_taken(plane[layer], source_row, own) for plane in source.planes)
            slot = ZipSlots(*(tensor[layer, row] for tensor in (*self.planes, *self.beside)))
            fill(slot, keys, values, min(fixed, own.shape[1]), got)


def _by_age(index: Tensor, saliency: Tensor, fixed: int) -> tuple[Tensor, Tensor]:
    """Return both [L, H, n] with the entries after the first `fixed` in the order of the prompt."""
    order = index[..., fixed:].argsort(-1)

    def ordered(x: Tensor) -> Tensor:
        return torch.cat((x[..., :fixed], x[..., fixed:].gather(-1, order)), -1)

    return ordered(index), ordered(saliency)


def _taken(staged: Tensor, row: int, index: Tensor) -> Tensor:
    """Return the entries int64 [H, n] of a plane's row [R, H, C, D]: [H, n, D]."""
    vectors = staged.new_empty(1, *index.shape, staged.shape[-1])
    take_rows(staged[None], row, index[None], vectors)
    return vectors[0]
