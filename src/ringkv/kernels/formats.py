"""Formats of packed weights. A packed tensor's dtype and number of dimensions identify its format."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ringkv.kernels import byte_groups, int8_products, packing, quantize


class WeightFormat(NamedTuple):
    """Conversions of a matrix [out, in] to panels [S, ...] and back. Plain matrices (two dimensions) have none."""

    dtype: torch.dtype
    dimensions: int  # of a packed tensor
    pack: Callable[[Any], Tensor]
    unpack: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor, Tensor], Tensor] | None = None  # looks up rows faster than `unpack` of their panels
    quantise: Callable[[Tensor], Any] | None = None  # to what `pack` also accepts, and a checkpoint may have
    multiplied: Callable[[Tensor], Tensor] | None = None  # what products make of the rows of x; None: nothing
    has_groups: bool = False  # along K, with scales of their own; few rows are then multiplied in another way than many
    fits: Callable[[Tensor], bool] = packing.is_whole  # whether it can store this matrix; others stay plain
    alternating: Callable[[Tensor], Tensor] | None = None  # a faster `pack_gated`

    def pack_gated(self, weight: Any) -> Tensor:
        """Pack gate and up stacked: panels of gates and of ups alternate."""
        if self.alternating:
            return self.alternating(weight)
        halves = weight.chunk(2) if isinstance(weight, Tensor) else quantize.chunks(weight, 2)
        return torch.stack([self.pack(half) for half in halves], dim=1).flatten(0, 1)


_BF16 = WeightFormat(torch.bfloat16, 5, packing.pack, packing.unpack, packing.packed_rows)
_INT8 = WeightFormat(torch.int8, 3, quantize.pack_int8, quantize.unpack_int8, quantize.int8_rows, quantize.rows_of)
_INT4 = WeightFormat(
    torch.uint8, 4, quantize.pack_int4, quantize.unpack_int4, quantise=quantize.groups_of, has_groups=True
)
_GROUPS = WeightFormat(
    torch.int8, 5, byte_groups.pack_groups, byte_groups.unpack_groups, quantise=byte_groups.nearest, has_groups=True
)
FORMATS: Mapping[str, WeightFormat] = {
    "bf16": _BF16._replace(fits=packing.can_pack, alternating=packing.pack_gated),
    "int8": _INT8,
    "int4": _INT4,
    "w8a8": WeightFormat(
        torch.int8,
        4,
        int8_products.pack_w8a8,
        int8_products.unpack_w8a8,
        int8_products.w8a8_rows,
        multiplied=int8_products.rounded,
    ),
    "w4a8": _INT4._replace(dimensions=5, pack=int8_products.pack_w4a8, multiplied=int8_products.rounded),
    "w4a4": _INT4._replace(dimensions=6, pack=int8_products.pack_w4a4, multiplied=int8_products.rounded_to_4_bits),
    "int8-groups": _GROUPS,
    "int8-groups-a8": _GROUPS._replace(
        dimensions=6, pack=partial(byte_groups.pack_groups, line=byte_groups.LINE_A8), multiplied=int8_products.rounded
    ),
}
_OF_TENSOR = {(format.dtype, format.dimensions): format for format in FORMATS.values()}


def format_of(packed: Tensor) -> WeightFormat:
    """Return the format of a packed matrix."""
    return _OF_TENSOR[packed.dtype, packed.dim()]


def unpack(packed: Tensor) -> Tensor:
    """Return a packed matrix as [out, in], and a plain one unchanged."""
    return packed if packed.dim() == 2 else format_of(packed).unpack(packed)


def unpack_gated(packed: Tensor) -> Tensor:
    """Invert `pack_gated`; return a plain matrix unchanged."""
    if packed.dim() == 2:
        return packed
    return torch.cat([unpack(half) for half in packed.unflatten(0, (-1, 2)).unbind(1)])


def rows_of(weight: Tensor, rows: Tensor) -> Tensor:
    """Look up rows of a plain or packed matrix, as an embedding does: int [N] -> [N, in]."""
    if weight.dim() == 2:
        return weight[rows]
    form = format_of(weight)
    return form.rows(weight, rows) if form.rows else packing.rows_by_panel(weight, rows, form.unpack).bfloat16()


def multiplied(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [M, in] as products with this weight multiply it: rounded if the format does so."""
    change = None if weight.dim() == 2 else format_of(weight).multiplied
    return x if change is None else change(x)
