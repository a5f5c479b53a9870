"""Prefill attention over latents in two forms (DeepSeek-V2, arXiv 2405.04434, section 2.1.3).

N rows of a pass, H query heads, S staged entries, P lanes, W window. An entry has the R elements of a latent, then the
rotated key. A plain query has D elements that do not rotate, then those that do. A value has V elements.

In the absorbed form all heads attend to the entries themselves. In the expanded form a block of latents becomes each
head's keys and values, in a workspace whose size does not depend on S. For a row, an entry and a head it takes
D + rotated + V multiply-adds instead of 2 R + rotated. Expansion costs R (D + V) for an entry and a head in each chunk.
So chunks of at least EXPANDED_ROWS rows are expanded on a CPU, and shorter ones are not.

The two forms round differently. So a token's bits depend on the form of its chunk, and on nothing else of the cut.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.library import register_fake

from ringkv.kernels.by_head import by_head, outputs
from ringkv.kernels.formats import unpack
from ringkv.kernels.latent_attend import prefill_attend_latent
from ringkv.kernels.library import LIBRARY
from ringkv.kernels.packing import fits_tiles
from ringkv.kernels.partial import Partial, merge
from ringkv.kernels.prefill_attend import Segment, attend_visible, stage

EXPANDED_ROWS = 192  # with DeepSeek's heads the two forms take as long at about 140
BLOCK = 512  # entries that the reference expands at a time
SCORES = 1 << 24  # scores that the reference computes at a time


class Expansion(NamedTuple):
    """Plain queries [N, H, D + rotated], and the matrices between latents and the keys and values of all heads.

    key_up: each head's [R, D], value_up: each head's [V, R], as for `by_head`.
    """

    plain: Tensor
    key_up: Tensor
    value_up: Tensor


def project_values(found: Partial, expansion: Expansion | None) -> Partial:
    """Return the values [N, 1, H, V] of absorbed attention [N, 1, H, entry]. Without an expansion nothing changes."""
    if expansion is None:
        return found
    plain, key_up, value_up = expansion
    rank = outputs(key_up, plain.shape[1])
    return Partial(by_head(found.out[:, 0, :, :rank], value_up)[:, None], found.lse)


def prefill_attend_expanded(
    q: Tensor, k: Tensor, latents: Tensor, window: Tensor, segments: Tensor, scale: float, expansion: Expansion
) -> Partial:
    """Stage k [N, 1, entry] in latents [1, S, entry] and attend causally; see `prefill_attend`.

    q [N, 1, H, entry]: absorbed queries, which also go to the window. Returns out [N, 1, H, V] and lse [N, 1, H].
    """
    plain, key_up, value_up = expansion
    attend = torch.ops.ringkv.prefill_attend_expanded
    return Partial(*attend(q, plain, k, latents, window, segments, key_up, value_up, scale))


def _prefill(
    q: Tensor,
    plain: Tensor,
    k: Tensor,
    latents: Tensor,
    window: Tensor,
    segments: Tensor,
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Run both forms and add their results: each has out 0 and lse -inf for the rows of the other."""
    is_long = segments[:, 1] >= EXPANDED_ROWS
    short, long = segments[~is_long], segments[is_long]
    if not len(long):
        return _absorbed(q, plain, k, latents, window, short, key_up, value_up, scale)
    for segment in map(Segment._make, long.tolist()):
        stage(segment, q[segment.here], k[segment.here], None, latents, latents, window)
    expansion = Expansion(plain, key_up, value_up)
    out, lse = (one[:, None] for one in expanded_attend(latents, long, scale, expansion))
    if not len(short):
        return out, lse
    others = Partial(*_absorbed(q, plain, k, latents, window, short, key_up, value_up, scale))
    return out + others.out, torch.maximum(lse, others.lse)


def _absorbed(
    q: Tensor,
    plain: Tensor,
    k: Tensor,
    latents: Tensor,
    window: Tensor,
    segments: Tensor,
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Absorb all chunks: only that form has a kernel on CUDA."""
    found = prefill_attend_latent(q, k, latents, window, segments, scale)
    return project_values(found, Expansion(plain, key_up, value_up))


def expanded_attend(latents: Tensor, segments: Tensor, scale: float, expansion: Expansion) -> tuple[Tensor, Tensor]:
    """Attend causally with plain queries to staged latents [1, S, entry]: out [N, H, V] and lse [N, H].

    Rows of no segment have out 0 and lse -inf.
    """
    plain, key_up, value_up = expansion
    if 2 not in (key_up.dim(), value_up.dim()) and fits_tiles(plain, "expanded_attend"):
        found: tuple[Tensor, Tensor] = torch.ops.ringkv.expanded_attend(
            plain, latents, segments, key_up, value_up, scale
        )
        return found
    return reference(plain, latents, segments, key_up, value_up, scale)


def reference(
    plain: Tensor, latents: Tensor, segments: Tensor, key_up: Tensor, value_up: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Implement `expanded_attend` in plain torch, in float32: BLOCK entries of at most SCORES scores at a time."""
    heads, rank = plain.shape[1], outputs(key_up, plain.shape[1])
    out = plain.new_zeros(*plain.shape[:2], outputs(value_up, heads))
    lse = plain.new_full(plain.shape[:2], float("-inf"), dtype=torch.float32)
    keys_up, values_up = (unpack(one).unflatten(0, (heads, -1)).to(plain.dtype) for one in (key_up, value_up))
    for segment in map(Segment._make, segments.tolist()):
        seen = latents[0, segment.first : segment.entries.stop]
        step = max(1, SCORES // (BLOCK * max(1, segment.rows)))
        for own in (slice(head, head + step) for head in range(0, heads, step)):
            q = plain[segment.here, own].transpose(0, 1).float() * scale
            found = _in_blocks(q, seen, segment.start, rank, keys_up[own].transpose(1, 2), values_up[own])
            out[segment.here, own] = found.out.transpose(0, 1).to(out.dtype)
            lse[segment.here, own] = found.lse.T
    return out, lse


def _in_blocks(q: Tensor, seen: Tensor, start: int, rank: int, key_up: Tensor, value_up: Tensor) -> Partial:
    """Attend with scaled q [H, T, D + rotated] to entries [start + T, entry]; key_up [H, D, R], value_up [H, V, R]."""
    position = torch.arange(start, len(seen), device=q.device)[:, None]
    result = Partial(q.new_zeros(*q.shape[:2], value_up.shape[1]), q.new_full(q.shape[:2], float("-inf")))
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


def _shape(q: Tensor, plain: Tensor, *others: Tensor | float) -> tuple[Tensor, Tensor]:
    value_up = others[-2]
    assert isinstance(value_up, Tensor)
    rows, heads = plain.shape[:2]
    out = plain.new_empty(rows, 1, heads, outputs(value_up, heads))
    return out, plain.new_empty(rows, 1, heads, dtype=torch.float32)


LIBRARY.impl("prefill_attend_expanded", _prefill, "CompositeExplicitAutograd")
LIBRARY.impl("prefill_attend_expanded", _absorbed, "CUDA")
LIBRARY.impl("expanded_attend", reference, "CompositeExplicitAutograd")
register_fake("ringkv::prefill_attend_expanded", _shape, lib=LIBRARY)
