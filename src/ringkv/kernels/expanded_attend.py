"""Attention with plain queries to latents that are expanded (DeepSeek-V2, arXiv 2405.04434, section 2.1.3).

N rows of a pass, H query heads, S staged entries. An entry has the R elements of a latent, then the rotated key. A
plain query has D elements that do not rotate, then those that do. A value has V elements.

A block of latents becomes each head's keys and values, in a workspace whose size does not depend on S.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.kernels.attended import Attended, merge
from ringkv.kernels.by_head import outputs
from ringkv.kernels.formats import unpack
from ringkv.kernels.library import register
from ringkv.kernels.packing import fits_tiles
from ringkv.kernels.prefill_attend import Segment, attend_visible

BLOCK = 512  # entries that the reference expands at a time
SCORES = 1 << 24  # scores that the reference computes at a time


class Expansion(NamedTuple):
    """The matrices between latents and the keys and values of all heads.

    key_up: each head's [R, D], value_up: each head's [V, R], as for `by_head`.
    """

    key_up: Tensor
    value_up: Tensor


def expanded_attend(plain: Tensor, latents: Tensor, segments: Tensor, scale: float, expansion: Expansion) -> Attended:
    """Attend causally with plain queries [N, H, D + rotated] to staged latents [1, S, entry].

    Returns out [N, H, V] and lse [N, H]. Rows of no segment have out 0 and lse -inf.
    """
    key_up, value_up = expansion
    if 2 not in (key_up.dim(), value_up.dim()) and fits_tiles(plain, "expanded_attend"):
        return Attended(*torch.ops.ringkv.expanded_attend(plain, latents, segments, key_up, value_up, scale))
    return Attended(*reference(plain, latents, segments, key_up, value_up, scale))


def reference(
    plain: Tensor, latents: Tensor, segments: Tensor, key_up: Tensor, value_up: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Implement `expanded_attend` in plain torch, in float32: BLOCK entries of at most SCORES scores at a time."""
    heads, rank = plain.shape[1], outputs(key_up, plain.shape[1])
    out = plain.new_zeros(*plain.shape[:2], outputs(value_up, heads))
    lse = plain.new_full(plain.shape[:2], float("-inf"), dtype=torch.float32)
    if not len(segments):
        return out, lse
    keys_up, values_up = (unpack(matrix).unflatten(0, (heads, -1)).to(plain.dtype) for matrix in (key_up, value_up))
    for segment in map(Segment._make, segments.tolist()):
        seen = latents[0, segment.first : segment.entries.stop]
        step = max(1, SCORES // (BLOCK * max(1, segment.rows)))
        for part in (slice(head, head + step) for head in range(0, heads, step)):
            q = plain[segment.here, part].transpose(0, 1).float() * scale
            attended = _in_blocks(q, seen, segment.start, rank, keys_up[part].transpose(1, 2), values_up[part])
            out[segment.here, part] = attended.out.transpose(0, 1).to(out.dtype)
            lse[segment.here, part] = attended.lse.T
    return out, lse


def _in_blocks(q: Tensor, seen: Tensor, start: int, rank: int, key_up: Tensor, value_up: Tensor) -> Attended:
    """Attend with scaled q [H, T, D + rotated] to entries [start + T, entry]; key_up [H, D, R], value_up [H, V, R]."""
    position = torch.arange(start, len(seen), device=q.device)[:, None]
    result = Attended(q.new_zeros(*q.shape[:2], value_up.shape[1]), q.new_full(q.shape[:2], float("-inf")))
    for first in range(0, len(seen), BLOCK):
        block = seen[first : first + BLOCK]
        latent, rotated = block[:, :rank], block[:, rank:].float().expand(len(q), -1, -1)
        keys, values = (_expanded(latent, up) for up in (key_up, value_up))
        hidden = torch.arange(first, first + len(block), device=q.device) > position
        result = merge(result, attend_visible(q, torch.cat((keys, rotated), -1), values, hidden))
    return result


def _expanded(latent: Tensor, up: Tensor) -> Tensor:
    """Return float32 [H, n, out] of latents [n, R] and matrices [H, out, R], rounded to the dtype of the latents."""
    # Products of 16 bits are emulated on many CPUs.
    wide = torch.float32 if latent.device.type == "cpu" else latent.dtype
    return torch.matmul(latent.to(wide), up.to(wide).transpose(1, 2)).to(latent.dtype).float()


register("expanded_attend", reference)
