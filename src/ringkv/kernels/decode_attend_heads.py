"""Decode attention over slots whose heads have different numbers of entries.

B rows of a step, S slots, H key-value heads, G query heads per key-value head, E entries of a slot, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.partial import Partial


def decode_attend_heads(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> Partial:
    """Do what `decode_attend` does in slots that all heads of all layers divide.

    keys, values [S, 1, E, D]. places int32 [S, H, 2]: the first entry of a head, and how many more entries than `live`
    it has. They are before the ring, so that the head's new token goes that much further than `entry`, too.
    """
    return Partial(*plain.operator("decode_attend_heads", q)(q, k, v, keys, values, places, slot, entry, live, scale))


def reference(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Implement `decode_attend_heads` in plain torch, over all E entries with a mask."""
    rows, (first, more) = slot.long(), places[slot.long()].unbind(-1)
    if k is not None and v is not None:
        index, used = (first + more + entry[:, None]).long(), (live > 0)[:, None, None]
        for plane, new in ((keys, k), (values, v)):
            at = rows[:, None], 0, index
            plane[at] = torch.where(used, new, plane[at])
    lengths = torch.where((live > 0)[:, None], live[:, None] + more, 0)
    place = torch.arange(keys.shape[2], device=q.device) - first[..., None]
    visible = (place >= 0) & (place < lengths[..., None])
    return plain.attend(q, keys[rows], values[rows], visible[:, :, None], scale)


plain.register("decode_attend_heads", reference)
plain.register_cuda("decode_attend_heads", "heads_attend")
