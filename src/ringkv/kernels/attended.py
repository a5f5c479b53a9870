"""Attended: attention over some of a query's keys, to be merged with attention over the others."""

from typing import NamedTuple

import torch
from torch import Tensor


class Attended(NamedTuple):
    """out [..., D]: the softmax-weighted mean of the values. lse float32 [...]: log-sum-exp of the scores.

    Without keys, out is 0 and lse -inf.
    """

    out: Tensor
    lse: Tensor


def empty_results(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Allocate out in the shape and dtype of q [..., D], and its lse. Shape function of operators with such results."""
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:-1], dtype=torch.float32)


def merge(first: Attended, second: Attended) -> Attended:
    """Return attention over the union of two disjoint sets of keys. `out` has the dtype of `first`."""
    share = torch.sigmoid(second.lse - first.lse).nan_to_num(0.0)[..., None]  # both empty: the difference is NaN
    out = (first.out.float() + share * (second.out.float() - first.out.float())).to(first.out.dtype)
    return Attended(out, torch.logaddexp(first.lse, second.lse))
