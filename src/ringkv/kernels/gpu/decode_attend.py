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
from ringkv.kernels.gpu.tiling import Tiling, chip, tiling

LOG2_E = log2(2.718281828459045)
LEAST_ROWS = 16  # of a tensor-core tile
STEP = 16


def decode_attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entry: Tensor, live: Tensor) -> Tensor:
    """See `kernels.decode_attend`, whose reference is the contract."""
    slots, heads, capacity, width = keys.shape
    return launch(
        q,
        k,
        v,
        keys,
        values,
        entry,
        live,
        tiling(slots * heads, capacity, _padded(width) * keys.element_size(), chip(keys.device)),
    )


def launch(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, entry: Tensor, live: Tensor, cut: Tiling
) -> Tensor:
    """The same, cut up as told; keys and values [B, H, C, D] may be parts of a larger tensor, but rows lie dense."""
    slots, heads, groups, width = q.shape
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
        HEADS=heads,
        GROUPS=groups,
        ROWS=max(LEAST_ROWS, triton.next_power_of_2(groups)),
        WIDTH=width,
        COLUMNS=_padded(width),
        SPLITS=cut.splits,
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
        HEADS=heads,
        GROUPS=groups,
        WIDTH=width,
        COLUMNS=_padded(width),
        SPLITS=cut.splits,
        ALL=triton.next_power_of_2(cut.splits),
        BLOCK=cut.block,
        STEP=STEP,
        num_warps=2,
    )
    return out


def _padded(width: int) -> int:
    """A tensor-core tile's inner size: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(width)))
