"""sort_by_expert: pairs of a row and an expert, sorted by expert, on the device alone and with static shapes.

M rows, E experts, K chosen for each row.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.rank_pairs import rank_pairs

BLOCK = 64  # pairs that one program places
FEW = 4096  # pairs; counting takes their square, but one launch


class Sorted(NamedTuple):
    """order: int64 [M * K], the pairs by expert, then by row. bounds: int32 [E + 1], the first place of each expert."""

    order: Tensor
    bounds: Tensor


def sort_by_expert(chosen: Tensor, count: int) -> Sorted:
    """Sort the pairs of chosen int64 [M, K] by expert. All shapes are static, and the host waits for nothing."""
    return ranked(chosen, count) if chosen.numel() <= FEW else sorted_by_torch(chosen, count)


def ranked(chosen: Tensor, count: int) -> Sorted:
    """Sort few pairs in one launch."""
    pairs = chosen.numel()
    found = Sorted(chosen.new_empty(pairs), chosen.new_empty(count + 1, dtype=torch.int32))
    programs = triton.cdiv(pairs, BLOCK) + triton.cdiv(count + 1, BLOCK)
    rank_pairs[(programs,)](chosen.contiguous(), *found, pairs, EXPERTS=count, BLOCK=BLOCK, num_warps=8)
    return found


def sorted_by_torch(chosen: Tensor, count: int) -> Sorted:
    experts, order = chosen.flatten().sort(stable=True)
    every = torch.arange(count + 1, device=chosen.device)
    return Sorted(order, torch.searchsorted(experts, every, out_int32=True))
