"""Decode attention over slots in the format zipcache (ZipCache, arXiv 2405.14256).

B rows of a step, S slots, H key-value heads, G query heads per key-value head, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels import decode_attend as plain
from ringkv.kernels.partial import Partial
from ringkv.kernels.zip_slots import BUFFERED, FIRST, TENSORS, ZipSlots
from ringkv.kernels.zip_tokens import append, decoded

NAME = "decode_attend_zip"


def decode_attend_zip(q: Tensor, k: Tensor, v: Tensor, *others: Tensor | float) -> Partial:
    """Add k, v [B, H, D] to each row's slot and attend to all of the slot's tokens, q [B, H, G, D].

    others: the tensors of `ZipSlots`, changed in place; slot, entry, live int32 [B]; scale. live: tokens that the
    layout calls live, with the new one; the slot may have up to two chunks more. The entry is not used. Returns what
    `decode_attend` returns, for a row with live 0 too.
    """
    slots, (slot, _, live, scale) = others[:TENSORS], others[TENSORS:]
    return Partial(*plain.operator(NAME, q)(q, k, v, *slots, slot, live, scale))


def reference(q: Tensor, k: Tensor, v: Tensor, *others: Tensor | float) -> tuple[Tensor, Tensor]:
    """Implement `decode_attend_zip` in plain torch, one row after the other."""
    slots = ZipSlots(*others[:TENSORS])  # type: ignore[arg-type]
    slot, live, scale = others[TENSORS:]
    assert isinstance(slot, Tensor)
    assert isinstance(live, Tensor)
    out, lse = torch.zeros_like(q, memory_format=torch.contiguous_format), q.new_full(q.shape[:3], -torch.inf).float()
    for row, (at, count) in enumerate(zip(slot.tolist(), live.tolist(), strict=True)):
        if count:
            own = slots.of(at)
            append(own, k[row], v[row], count)
            out[row], lse[row] = _attend(q[row], own, float(scale))
    return out, lse


def _attend(q: Tensor, slot: ZipSlots, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention of q [H, G, D] to a slot, and add what the keys in its buffer get to `attention`."""
    keys, values = decoded(slot)
    visible = torch.ones(1, 1, 1, keys.shape[1], dtype=torch.bool, device=q.device)
    out, lse = (result[0] for result in plain.attend(q[None], keys[None], values[None], visible, scale))
    count = slot.held()
    buffer = keys[:, count[FIRST] : count[FIRST] + count[BUFFERED]]
    weights = (torch.matmul(q.float() * scale, buffer.transpose(-1, -2)) - lse[..., None]).exp()
    slot.attention[:, : count[BUFFERED]] += weights.mean(1)
    return out, lse


plain.register(NAME, reference)
plain.register_cuda(NAME, "zip_attend")
