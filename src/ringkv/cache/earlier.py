"""Earlier: the encoded entries of an earlier turn, with which a lane began. Those that stay keep their bytes.

L layers of a group, H key-value heads, C entries of a slot, n entries, D elements of a vector, W of the centers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Earlier(NamedTuple):
    """One plane of the earlier entries. A lane's other entries are encoded with its centers, too.

    first: their first entry in the staging. entries: how many there are. centers: float32 [L, H, W], None for values.
    stored: layer -> the tensors of their plane [H, n, ...] each, n at least `entries`; none if they are stored no more.
    """

    first: int
    entries: int
    centers: Tensor | None
    stored: Callable[[int], Sequence[Tensor]]

    def shifted(self, offset: int) -> "Earlier":
        """Return these for a lane that begins so many entries later."""
        return self._replace(first=self.first + offset)

    def put_back(self, layer: int, index: Tensor, target: Sequence[Tensor]) -> None:
        """Let those that are among the entries int64 [H, n] of the staging keep their bytes.

        target: the slot's tensors of the layer, [H, C, ...] each. They change in place.
        """
        place = index - self.first
        is_earlier = (place >= 0) & (place < self.entries)
        head = torch.arange(len(index), device=index.device)[:, None]
        for tensor, stored in zip(target, self.stored(layer), strict=False):
            filled = tensor[:, : index.shape[1]]
            kept = stored.to(tensor.device)[head, place.clamp(0, max(0, self.entries - 1))]
            filled.copy_(torch.where(is_earlier.view(*is_earlier.shape, *[1] * (kept.dim() - 2)), kept, filled))
