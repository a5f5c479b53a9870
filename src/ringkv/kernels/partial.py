"""Partial: softmax attention over some of a query's keys, to be merged with attention over the others."""

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """out [..., D]: the softmax's mean of the values. lse float32 [...]: log of the sum of the exponentiated scores.

    No keys at all: out 0, lse -inf.
    """

    out: Tensor
    lse: Tensor


def merge(one: Partial, other: Partial) -> Partial:
    """Attention over the union of two disjoint sets of keys; the dtype of `out` is the first's."""
    share = torch.sigmoid(other.lse - one.lse).nan_to_num(0.0)[..., None]  # both empty: the difference is NaN
    out = (one.out.float() + share * (other.out.float() - one.out.float())).to(one.out.dtype)
    return Partial(out, torch.logaddexp(one.lse, other.lse))
