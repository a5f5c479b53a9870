"""ZipBody: slots in the encoding zipcache, whose chunks are the one exception that is not entries of its own.

L layers of a group, R rows, H key-value heads, n entries, D elements of a vector.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.cache.body import Body
from ringkv.cache.filling import Kept
from ringkv.cache.steps import Steps
from ringkv.kernels.zip_slots import ZipSlots
from ringkv.kernels.zip_tokens import fill


@dataclass(frozen=True)
class ZipBody(Body):
    """The planes of its slots are a `ZipSlots`. capacity: C, entries that a layout may have."""

    capacity: int = 0

    @property
    def entries(self) -> int:
        return self.capacity

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry in a chunk of 100, all layers."""
        return self.group.token_bytes(self.planes[0].element_size())

    @property
    def is_whole(self) -> bool:
        return True

    def take(self, row: int, kept: Kept) -> Steps[None]:
        """Fill a row, layer by layer, to keep the temporary vectors few. Tokens of the ring go in by age."""
        assert kept.saliency is not None
        index, saliency = _by_age(kept.entries, kept.saliency, kept.fixed)
        by_age = kept._replace(entries=index)
        for layer, salient in enumerate(saliency):
            keys, values = (by_age.taken(plane, layer) for plane in range(2))
            slot = ZipSlots(*(tensor[layer, row] for tensor in self.planes))
            fill(slot, keys, values, min(kept.fixed, kept.length), salient)
            yield


def _by_age(index: Tensor, saliency: Tensor, fixed: int) -> tuple[Tensor, Tensor]:
    """Return both [L, H, n] with the entries after the first `fixed` in the order of the prompt."""
    first, later = index[..., :fixed], index[..., fixed:]
    places = torch.arange(first.shape[-1], device=index.device).expand_as(first)
    order = torch.cat((places, fixed + later.argsort(-1)), -1)
    return index.gather(-1, order), saliency.gather(-1, order)
