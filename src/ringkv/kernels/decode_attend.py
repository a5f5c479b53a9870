"""Decode attention: one fresh token per row that is written at once, or several that are committed later.

B rows of a step, T fresh tokens per row, S slots, H key-value heads, G query heads per key-value head, C entries per
slot, D head_dim.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels.library import LIBRARY, is_native
from ringkv.kernels.partial import Partial, empty_results, merge

WIDTH_STEP = 32  # the C++ kernels need a head_dim that is a multiple of this


def decode_attend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> Partial:
    """Write k, v [B, H, D] at `entry` of each row's slot and attend to the slot's entries 0 .. live-1.

    q [B, H, G, D]; keys, values [S, H, C, D], changed in place; slot, entry, live int32 [B]; live includes the new
    token. Returns softmax(scale * q keys^T) values [B, H, G, D] and its log-sum-exp. No two rows share a slot. A row
    with live 0 is free: nothing is written, its out is 0 and its lse -inf. Scores and sums are float32. k and v are
    None if another layer has written them.
    """
    if k is None or v is None:
        return read_attend(q, keys, values, slot, live, scale)
    return Partial(*operator("decode_attend", q)(q, k, v, keys, values, slot, entry, live, scale))


def read_attend(q: Tensor, keys: Tensor, values: Tensor, slot: Tensor, live: Tensor, scale: float) -> Partial:
    """Attend as `decode_attend` does, to entries that another layer has written."""
    none = torch.full_like(live[:, None], -1)
    return Partial(*operator("cache_attend", q)(q, keys, values, slot, none, live, scale))


def fresh_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> Partial:
    """Attend with T fresh tokens that are not in the cache; `commit` writes those that are kept.

    q [B, T, H, G, D]; k, v [B, T, H, D]; entry int32 [B, T], the entry of each fresh token; live int32 [B], the
    slot's live entries before them. Token t sees the live entries except those that tokens 0 .. t would overwrite, and
    tokens 0 .. t themselves, as in T steps of `decode_attend`. Returns out [B, T, H, G, D] and its lse.
    """
    rows, fresh, heads, groups, width = q.shape
    queries = q.permute(0, 2, 1, 3, 4).reshape(rows, heads, fresh * groups, width)
    cached = Partial(*operator("cache_attend", q)(queries, keys, values, slot, entry, live, scale))
    merged = merge(cached, _attend_fresh(queries, k, v, live, scale))
    out = merged.out.view(rows, heads, fresh, groups, width).transpose(1, 2)
    return Partial(out, merged.lse.view(rows, heads, fresh, groups).transpose(1, 2))


def commit(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slot: Tensor, entry: Tensor, count: Tensor) -> None:
    """Write the first `count` int32 [B] of each row's fresh tokens k, v [B, T, H, D] at their entries int32 [B, T]."""
    for token in range(entry.shape[1]):
        write((keys, values), (k[:, token], v[:, token]), slot, entry[:, token], count - token)


def write(planes: Sequence[Tensor], new: Sequence[Tensor], slot: Tensor, entry: Tensor, live: Tensor) -> None:
    """Write new [B, H, ...] at `entry` of each row's slot, in planes [S, H, C, ...]. Rows with live <= 0 write nothing.

    Those rows store what is there already, so that the host need not wait for `live`.
    """
    index = slot.long(), slice(None), entry.long()
    for plane, fresh in zip(planes, new, strict=True):
        used = (live > 0).view(-1, *[1] * (fresh.dim() - 1))
        plane[index] = torch.where(used, fresh, plane[index])


def _attend_fresh(q: Tensor, k: Tensor, v: Tensor, live: Tensor, scale: float) -> Partial:
    """Return causal attention of q [B, H, T * G, D] to the fresh tokens only, k and v [B, T, H, D]."""
    fresh, queries = k.shape[1], q.shape[2]
    scores = torch.matmul(q.float() * scale, k.permute(0, 2, 3, 1).float())
    token = torch.arange(fresh, device=q.device)
    future = token > token.repeat_interleave(queries // fresh)[:, None]
    scores = scores.masked_fill(future, float("-inf"))
    out = torch.matmul(scores.softmax(-1), v.transpose(1, 2).float())
    return Partial(out.to(q.dtype), scores.logsumexp(-1))


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Implement `decode_attend` in plain torch, over all C entries with a mask: no host sync for any lengths."""
    write((keys, values), (k, v), slot, entry, live)
    visible = torch.arange(keys.shape[2], device=q.device) < live[:, None]
    return attend(q, keys[slot.long()], values[slot.long()], visible[:, None, None], scale)


def cache_reference(
    q: Tensor, keys: Tensor, values: Tensor, slot: Tensor, holes: Tensor, live: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return attention of q [B, H, T * G, D] to live entries. Query i sees all but holes 0 .. i / G, int32 [B, T]."""
    index = torch.arange(keys.shape[2], device=q.device)
    hidden = (holes[:, :, None] == index).int().cumsum(1).bool()  # [B, T, C]
    visible = (index < live[:, None])[:, None] & ~hidden
    visible = visible.repeat_interleave(q.shape[2] // holes.shape[1], 1)[:, None]
    return attend(q, keys[slot.long()], values[slot.long()], visible, scale)


def attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention of q [B, H, Q, D] to the `visible` bool [B, 1, 1 or Q, C] of keys and values [B, H, C, D]."""
    scores = torch.matmul(q.float() * scale, keys.float().transpose(-1, -2))
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = scores.softmax(-1).masked_fill((lse == float("-inf"))[..., None], 0.0)
    return torch.matmul(weights, values.float()).to(q.dtype), lse


def needs_reference(q: Tensor, name: str) -> bool:
    """Whether q is on the CPU, where the operator's C++ kernel is loaded but does not support this head_dim."""
    return q.device.type == "cpu" and q.shape[-1] % WIDTH_STEP != 0 and is_native(name)


def operator(name: str, q: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an operator of attention with queries q, or its reference."""
    found: Callable[..., tuple[Tensor, Tensor]] = getattr(
        torch.ops.ringkv, f"{name}_any" if needs_reference(q, name) else name
    )
    return found


def register(name: str, function: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Register the reference of an operator of attention, for any width too."""
    for each in (name, f"{name}_any"):
        LIBRARY.impl(each, function, "CompositeExplicitAutograd")
        register_fake(f"ringkv::{each}", empty_results, lib=LIBRARY)


def register_cuda(name: str, module: str) -> None:
    """Register the function `name` of a module of `kernels.gpu` for CUDA, if Triton is installed."""
    if find_spec("triton"):
        LIBRARY.impl(name, partial(_in_triton, module, name), "CUDA")


def _in_triton(module: str, name: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    found = import_module(f"ringkv.kernels.gpu.{module}")  # loads Triton
    result: tuple[Tensor, Tensor] = getattr(found, name)(*arguments)
    return result


register("decode_attend", reference)
register("cache_attend", cache_reference)
register_cuda("decode_attend", "decode_attend")
register_cuda("cache_attend", "decode_attend")
