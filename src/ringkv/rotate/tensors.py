"""tensors: one of our weights as a checkpoint's tensors, in the layout of compressed-tensors if it is quantised.

4 bits: weight_packed, weight_scale, weight_zero_point and weight_shape. 8 bits: weight and weight_scale. See
`weights.compressed_tensors`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from ringkv.models.weights import Weight
from ringkv.rotate.grid import Rounded

EACH = 8  # integers of 4 bits in a word


def stored(weight: Weight, value: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of a weight that is not quantised."""
    return {name: value[rows].to(dtype).contiguous() for name, rows in _parts(weight)}


def quantised(weight: Weight, value: Rounded, bits: int) -> dict[str, Tensor]:
    """Return the tensors of a quantised matrix."""
    found: dict[str, Tensor] = {}
    for name, rows in _parts(weight):
        q, scale, zero = value.q[rows], value.levels.scale[rows], value.levels.zero[rows]
        if bits == 8:
            found |= {name: q.contiguous(), f"{name}_scale": scale.contiguous()}
            continue
        found |= {f"{name}_packed": _packed(q), f"{name}_scale": scale.half(), f"{name}_shape": torch.tensor(q.shape)}
        found[f"{name}_zero_point"] = _packed(zero.T).T.contiguous()
    return found


def _parts(weight: Weight) -> Iterator[tuple[str, slice]]:
    """Yield each tensor that a weight is stacked from, and its rows. Parts of one tensor are neighbours, in order."""
    start = stop = 0
    for at, part in enumerate(weight.parts):
        stop += part.shape[0]
        if at + 1 == len(weight.parts) or weight.parts[at + 1].name != part.name:
            yield part.name, slice(start, stop)
            start = stop


def _packed(q: Tensor) -> Tensor:
    """Pack -8 to 7 [n, m] into int32 [n, m / 8, rounded up]: plus 8, the first in the lowest bits."""
    words: Tensor = pad(q.long() + 8, (0, -q.shape[1] % EACH)).unflatten(1, (-1, EACH))
    shifts = torch.arange(EACH) * 4
    return (words << shifts).sum(-1).to(torch.int32)
