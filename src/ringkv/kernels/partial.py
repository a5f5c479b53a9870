"""Partial: attention over some of a query's keys, to be merged with attention over the others."""

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """out [..., D]: the softmax-weighted mean of the values. lse float32 [...]: log-sum-exp of the scores.

    Without keys, out is 0 and lse -inf.
    """

    out: Tensor
    lse: Tensor


def empty_results(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Allocate out in the shape and dtype of q [..., D], and its lse. Shape function of operators with such results."""
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:-1], dtype=torch.float32)


def merge(one: Partial, other: Partial) -> Partial:
    """Return attention over the union of two disjoint sets of keys. `out` has the first's dtype."""
    share = torch.sigmoid(other.lse - one.lse).nan_to_num(0.0)[..., None]  # both empty: the difference is NaN
    out = (one.out.float() + share * (other.out.float() - one.out.float())).to(one.out.dtype)
    return Partial(out, torch.logaddexp(one.lse, other.lse))
