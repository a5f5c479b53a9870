"""The reference of decode attention over slots in the encoding zipcache (ZipCache, arXiv 2405.14256).

B rows of a step, S slots, H key-value heads, G query heads per key-value head, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels.attend import attend
from ringkv.kernels.constants import BUFFERED, FIRST
from ringkv.kernels.slots import Rows, Slots
from ringkv.kernels.zip_slots import ZipSlots
from ringkv.kernels.zip_tokens import append, decoded


def decode_attend(q: Tensor, k: Tensor, v: Tensor, slots: Slots, rows: Rows, scale: float) -> tuple[Tensor, Tensor]:
    """Add k, v [B, H, D] to each row's slot and attend to all of the slot's tokens, one row after the other.

    live: tokens that the layout calls live, with the new one; the slot may have up to two chunks more. The entry is not
    used.
    """
    chunks = ZipSlots(*slots.planes)
    out, lse = torch.zeros_like(q, memory_format=torch.contiguous_format), q.new_full(q.shape[:3], -torch.inf).float()
    for row, (slot, live) in enumerate(zip(rows.slot.tolist(), rows.live.tolist(), strict=True)):
        if live:
            stored = chunks.of(slot)
            append(stored, k[row], v[row], live)
            out[row], lse[row] = _attend(q[row], stored, scale)
    return out, lse


def _attend(q: Tensor, slot: ZipSlots, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention of q [H, G, D] to a slot, and add what the keys in its buffer get to `attention`."""
    keys, values = decoded(slot)
    visible = torch.ones(1, 1, 1, keys.shape[1], dtype=torch.bool, device=q.device)
    out, lse = (result[0] for result in attend(q[None], keys[None], values[None], visible, scale))
    count = slot.held()
    buffer = keys[:, count[FIRST] : count[FIRST] + count[BUFFERED]]
    weights = (torch.matmul(q.float() * scale, buffer.transpose(-1, -2)) - lse[..., None]).exp()
    slot.attention[:, : count[BUFFERED]] += weights.mean(1)
    return out, lse
