"""Absorbed queries, and the values of attention with them (DeepSeek-V2, arXiv 2405.04434, section 2.1.3).

N rows of a pass, n of some of them, H query heads. The sizes of entries, queries and values are those of
`expanded_attend`. An absorbed query attends to the entries themselves. The product of the R elements that it finds with
a matrix of the head is the head's value.
"""

import torch
from torch import Tensor

from ringkv.kernels.attended import Attended
from ringkv.kernels.by_head import by_head, by_head_among, outputs
from ringkv.kernels.expanded_attend import Expansion


def absorb(q: Tensor, k: Tensor | None, expansion: Expansion | None) -> Tensor:
    """Return absorbed queries [N, 1, H, entry] of plain q, for entries k. Without an expansion nothing changes."""
    if expansion is None:
        return q
    assert k is not None
    nope, rotated = _parts(q, k, expansion)
    return torch.cat((by_head(nope, expansion.key_up), rotated), -1)[:, None]


def absorb_among(q: Tensor, k: Tensor, rows: Tensor, expansion: Expansion) -> Tensor:
    """Return some rows, int64 [n], of `absorb`."""
    nope, rotated = _parts(q[rows], k, expansion)
    return torch.cat((by_head_among(nope, expansion.key_up, rows, len(q)), rotated), -1)[:, None]


def project_values(found: Attended, expansion: Expansion | None) -> Attended:
    """Return the values [N, 1, H, V] of absorbed attention [N, 1, H, entry]. Without an expansion nothing changes."""
    if expansion is None:
        return found
    return Attended(by_head(_latents(found.out, expansion), expansion.value_up)[:, None], found.lse)


def values_among(out: Tensor, rows: Tensor, count: int, expansion: Expansion) -> Tensor:
    """Return the values [n, H, V] of absorbed attention [n, 1, H, entry] of some rows among `count`."""
    return by_head_among(_latents(out, expansion), expansion.value_up, rows, count)


def _parts(q: Tensor, k: Tensor, expansion: Expansion) -> tuple[Tensor, Tensor]:
    """Split plain queries for entries k into elements that do not rotate [N, H, D], and those that do."""
    rotated = k.shape[-1] - outputs(expansion.key_up, q.shape[2])
    return q[:, 0, :, :-rotated], q[:, 0, :, -rotated:]


def _latents(out: Tensor, expansion: Expansion) -> Tensor:
    """Return the elements of absorbed attention that belong to latents: [N, H, R]."""
    return out[:, 0, :, : outputs(expansion.key_up, out.shape[2])]
