"""Formats: what a packed weight can be stored as. A tensor's type of number tells which it is."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ringkv.kernels import packing, quantize


class Format(NamedTuple):
    """How a matrix [out, in] becomes strips [S, ...], and back. Plain matrices, of two dimensions, have no format."""

    dtype: torch.dtype
    fits: Callable[[Tensor], bool]  # what is not worth packing, or cannot be, stays plain
    pack: Callable[[Any], Tensor]
    pack_gated: Callable[[Any], Tensor]  # gate and up stacked: a strip of gates, the strip of their ups, and so on
    unpack: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor, Tensor], Tensor]
    group: Callable[[Tensor], quantize.Groups] | None = None  # where the packings take groups, too: they may be known


def _by_turns(pack: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    return lambda weight: torch.stack([pack(half) for half in weight.chunk(2)], dim=1).flatten(0, 1)


FORMATS: Mapping[str, Format] = {
    "bf16": Format(
        torch.bfloat16,
        packing.can_pack,
        packing.pack,
        packing.pack_gated,
        packing.unpack,
        packing.packed_rows,
    ),
    "int8": Format(
        torch.int8,
        packing.is_whole,
        quantize.pack_int8,
        _by_turns(quantize.pack_int8),
        quantize.unpack_int8,
        quantize.int8_rows,
    ),
    "int4": Format(
        torch.uint8,
        packing.is_whole,
        quantize.pack_int4,
        _by_turns(quantize.pack_int4),
        quantize.unpack_int4,
        quantize.int4_rows,
        quantize.groups_of,
    ),
}
_STORED = {format.dtype: format for format in FORMATS.values()}


def unpack(packed: Tensor) -> Tensor:
    """A packed matrix, [out, in]; a plain one as it is."""
    return packed if packed.dim() == 2 else _STORED[packed.dtype].unpack(packed)


def unpack_gated(packed: Tensor) -> Tensor:
    """The inverse of `pack_gated`; a plain matrix as it is."""
    if packed.dim() == 2:
        return packed
    return torch.cat([unpack(half) for half in packed.unflatten(0, (-1, 2)).unbind(1)])


def rows_of(weight: Tensor, rows: Tensor) -> Tensor:
    """Rows of a matrix, plain or packed, as an embedding looks them up: int [N] -> [N, in]."""
    return weight[rows] if weight.dim() == 2 else _STORED[weight.dtype].rows(weight, rows)
