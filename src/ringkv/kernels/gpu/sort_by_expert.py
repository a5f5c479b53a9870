"""sort_by_expert: pairs of a row and an expert, sorted by expert, on the device alone and with static shapes.

M rows, E experts, K chosen for each row.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ringkv.kernels.gpu.place_pairs import count_pairs, place_pairs, rank_pairs

BLOCK = 64  # pairs that one program places
FEW = 512  # pairs; ranking takes their square, but one launch
MANY_BLOCK, LOADED = 256, 4096  # of a sort in two launches: pairs of one program, counts that it loads at a time


class Sorted(NamedTuple):
    """order: int64 [M * K], the pairs by expert, then by row. bounds: int32 [E + 1], the first place of each expert.

    The last bound is the number of pairs whose expert is one of the E. All others, of experts on another rank, follow.
    """

    order: Tensor
    bounds: Tensor


def sort_by_expert(chosen: Tensor, count: int) -> Sorted:
    """Sort the pairs of chosen int64 [M, K] by expert. All shapes are static, and the host waits for nothing."""
    return ranked(chosen, count) if chosen.numel() <= FEW else placed(chosen, count)


def ranked(chosen: Tensor, count: int) -> Sorted:
    """Sort few pairs in one launch."""
    pairs = chosen.numel()
    result = Sorted(chosen.new_empty(pairs), chosen.new_empty(count + 1, dtype=torch.int32))
    programs = triton.cdiv(pairs, BLOCK) + triton.cdiv(count + 1, BLOCK)
    rank_pairs[(programs,)](chosen.contiguous(), *result, pairs, EXPERTS=count, BLOCK=BLOCK, num_warps=8)
    return result


def placed(chosen: Tensor, count: int) -> Sorted:
    """Sort many pairs in two launches."""
    pairs, padded = chosen.numel(), triton.next_power_of_2(count + 1)
    blocks = triton.cdiv(pairs, MANY_BLOCK)
    result = Sorted(chosen.new_empty(pairs), chosen.new_empty(count + 1, dtype=torch.int32))
    counts = chosen.new_empty(blocks, padded, dtype=torch.int32)
    sizes = {"EXPERTS": count, "PADDED": padded, "BLOCK": MANY_BLOCK}
    chosen = chosen.contiguous()
    count_pairs[(blocks,)](chosen, counts, pairs, **sizes)
    place_pairs[(blocks,)](chosen, counts, *result, pairs, **sizes, PART=BLOCK, LINES=max(1, LOADED // padded))
    return result
