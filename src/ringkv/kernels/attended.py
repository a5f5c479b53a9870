"""Attended: attention over some of a query's keys, to be merged with attention over the others."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.kernels.slots import Rows


class Attended(NamedTuple):
    """out [..., D]: the softmax-weighted mean of the values. lse float32 [...]: log-sum-exp of the scores.

    Without keys, out is 0 and lse -inf.
    """

    out: Tensor
    lse: Tensor


def empty_results(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Allocate out in the shape and dtype of q [..., D], and its lse. Shape function of operators with such results."""
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:-1], dtype=torch.float32)


def in_turn(
    attend: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor | None, v: Tensor | None, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Call attend(q, k, v, rows) for one token of each row after the other; q, k, v [R * T, ...], rows of T tokens.

    Returns out and lse of all tokens.
    """
    if rows.live.dim() == 1:
        return attend(q, k, v, rows)
    tokens = rows.live.shape[1]
    vectors = ([None] * tokens if x is None else x.unflatten(0, (-1, tokens)).unbind(1) for x in (q, k, v))
    # GPU kernels read rows' numbers as an array.
    numbers = zip(rows.entry.T.contiguous(), rows.live.T.contiguous(), strict=True)
    steps = zip(*vectors, (Rows(rows.slot, *each) for each in numbers), strict=True)
    out, lse = zip(*(attend(*step) for step in steps), strict=True)
    return torch.stack(out, 1).flatten(0, 1), torch.stack(lse, 1).flatten(0, 1)


def merge(first: Attended, second: Attended) -> Attended:
    """Return attention over the union of two disjoint sets of keys. `out` has the dtype of `first`."""
    share = torch.sigmoid(second.lse - first.lse).nan_to_num(0.0)[..., None]  # both empty: the difference is NaN
    out = (first.out.float() + share * (second.out.float() - first.out.float())).to(first.out.dtype)
    return Attended(out, torch.logaddexp(first.lse, second.lse))
