"""decode_attend: write one token per slot, then attend to the slot's live entries.

B slots, H key-value heads, G query heads per key-value head, C entries per slot, D head_dim.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels.library import LIBRARY


def decode_attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entry: Tensor, live: Tensor) -> Tensor:
    """Write k, v [B, H, D] at `entry` and return softmax(q keys^T / sqrt(D)) values over entries 0 .. live-1.

    q [B, H, G, D]; keys, values [B, H, C, D], changed in place; entry, live int32 [B], live counting the new token.
    A slot with live 0 is free: nothing is written and its output is 0. Scores and sums are float32.
    """
    out: Tensor = torch.ops.ringkv.decode_attend(q, k, v, keys, values, entry, live)
    return out


def reference(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entry: Tensor, live: Tensor) -> Tensor:
    """The same in plain torch, over all C entries with a mask: one shape whatever the lengths, no host sync."""
    _write(keys, k, entry, live)
    _write(values, v, entry, live)
    scores = torch.matmul(q.float() * q.shape[-1] ** -0.5, keys.float().transpose(-1, -2))
    visible = torch.arange(keys.shape[2], device=q.device) < live[:, None]
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    weights = scores.softmax(-1).masked_fill((live == 0)[:, None, None, None], 0.0)
    return torch.matmul(weights, values.float()).to(q.dtype)


def _write(plane: Tensor, new: Tensor, entry: Tensor, live: Tensor) -> None:
    slots = torch.arange(plane.shape[0], device=plane.device)
    at = entry.long()
    busy = (live > 0)[:, None, None]
    plane[slots, :, at] = torch.where(busy, new, plane[slots, :, at])


def _cuda(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entry: Tensor, live: Tensor) -> Tensor:
    from ringkv.kernels.gpu import decode_attend as gpu  # loads Triton

    return gpu.decode_attend(q, k, v, keys, values, entry, live)


def _shape(q: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


LIBRARY.impl("decode_attend", reference, "CompositeExplicitAutograd")
register_fake("ringkv::decode_attend", _shape, lib=LIBRARY)
if find_spec("triton"):
    LIBRARY.impl("decode_attend", _cuda, "CUDA")
