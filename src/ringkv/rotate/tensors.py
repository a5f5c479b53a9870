"""tensors: one of our weights as a checkpoint's tensors, in the layout of compressed-tensors if it is quantised.

4 bits: weight_packed, weight_scale, weight_zero_point and weight_shape. 8 bits: weight and weight_scale. See
`weights.compressed_tensors`.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import pad

from ringkv.models.weights import Weight
from ringkv.rotate.grid import Rounded

EACH = 8  # integers of 4 bits in a word
PACKED, SCALE, SHAPE, ZERO = SUFFIXES = ("_packed", "_scale", "_shape", "_zero_point")


def stored(weight: Weight, value: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of a weight that is not quantised."""
    return {name: value[rows].to(dtype).contiguous() for name, rows in _parts(weight)}


def quantised(weight: Weight, value: Rounded, bits: int) -> dict[str, Tensor]:
    """Return the tensors of a quantised matrix."""
    return {
        f"{name}{suffix}": tensor
        for name, rows in _parts(weight)
        for suffix, tensor in _LAYOUTS[bits](value.q[rows], *(level[rows] for level in value.levels)).items()
    }


def _in_words(q: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
    zeros = _packed(zero.T).T.contiguous()
    return {PACKED: _packed(q), SCALE: scale.half(), SHAPE: torch.tensor(q.shape), ZERO: zeros}


_LAYOUTS: Mapping[int, Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]] = {
    8: lambda q, scale, zero: {"": q.contiguous(), SCALE: scale.contiguous()},  # rows have zeros of 0, not stored
    4: _in_words,
}
"""A matrix's tensors by suffix, of each number of bits."""


def origin(name: str) -> str:
    """Return the name of the unquantised tensor that a tensor is a part of."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def _parts(weight: Weight) -> Iterator[tuple[str, slice]]:
    """Yield each tensor that a weight is stacked from, and its rows. Parts of one tensor are neighbours, in order."""
    start = stop = 0
    for name, parts in groupby(weight.parts, lambda part: part.name):
        stop += sum(part.shape[0] for part in parts)
        yield name, slice(start, stop)
        start = stop


def _packed(q: Tensor) -> Tensor:
    """Pack -8 to 7 [n, m] into int32 [n, m / 8, rounded up]: plus 8, the first in the lowest bits."""
    words: Tensor = pad(q.long() + 8, (0, -q.shape[1] % EACH)).unflatten(1, (-1, EACH))
    shifts = torch.arange(EACH) * 4
    return (words << shifts).sum(-1).to(torch.int32)
