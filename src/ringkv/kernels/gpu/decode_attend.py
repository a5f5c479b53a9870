"""decode_attend on CUDA: two Triton kernels, launched alike whatever the lengths, so that a CUDA graph can hold them.

B slots, H key-value heads, G query heads each, C entries, D head_dim, S splits. What a slot computes depends on its own
length and on fixed shapes: neighbours cannot change its result.
"""

from math import log2, sqrt

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.tiling import Tile, Tiling, chip, tiling

LOG2_E = log2(2.718281828459045)
LEAST = 16  # rows and columns of a tensor-core tile
STEP = 16  # splits


def decode_attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entry: Tensor, live: Tensor) -> Tensor:
    """See `kernels.decode_attend`, whose reference is the contract."""
    return launch(q, k, v, keys, values, entry, live, usual_tiling(q, keys))


def usual_tiling(q: Tensor, keys: Tensor) -> Tiling:
    """What `decode_attend` takes for q [B, H, G, D] and keys [B, H, C, D]."""
    slots, heads, capacity, _ = keys.shape
    return tiling(slots * heads, capacity, tile(q), chip(keys.device))


def tile(q: Tensor) -> Tile:
    """Queries [B, H, G, D] of one key-value head, padded to powers of two: at least 16, as tensor cores take them."""
    rows, columns = (max(LEAST, int(triton.next_power_of_2(n))) for n in q.shape[2:])
    return Tile(rows, columns, q.element_size())


def launch(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entry: Tensor, live: Tensor, cut: Tiling
) -> Tensor:
    """The same, cut up as told; keys and values [B, H, C, D] may be parts of a larger tensor, but rows lie dense."""
    slots, heads, groups, width = q.shape
    padded = tile(q)
    assert keys.stride() == values.stride()
    assert keys.stride()[2:] == (width, 1)
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    part = torch.empty(slots, heads, cut.splits, groups, width, dtype=torch.float32, device=q.device)
    lse = torch.empty(slots, heads, cut.splits, groups, dtype=torch.float32, device=q.device)
    out = torch.empty(slots, heads, groups, width, dtype=q.dtype, device=q.device)
    attend_split[cut.splits, heads, slots](
        q,
        k,
        v,
        keys,
        values,
        entry,
        live,
        part,
        lse,
        *q.stride()[:3],
        *k.stride()[:2],
        *v.stride()[:2],
        *keys.stride()[:2],
        LOG2_E / sqrt(width),
        heads,
        groups,
        cut.splits,
        ROWS=padded.rows,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=cut.block,
        WIDE=not keys.is_cuda,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    merge_splits[groups, heads, slots](
        part,
        lse,
        live,
        out,
        heads,
        groups,
        cut.splits,
        WIDTH=width,
        COLUMNS=padded.columns,
        BLOCK=cut.block,
        STEP=STEP,
        num_warps=2,
    )
    return out
