"""Packing: weights in the VNNI layout of AMX and AVX-512 BF16.

A panel is 16 outputs (N), stored as blocks of 32 elements along K, each [16 pairs, 16 outputs, 2]. A block is one AMX
tile of the right operand, and its rows are operands of the bfloat16 dot products of AVX-512. One copy serves prefill,
decode and the embedding. `quantize` stores the same blocks in fewer bits.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ringkv.kernels.library import is_native

PANEL_N = 16  # outputs of a panel
BLOCK_K = 32  # K elements of a block
CHUNK = 1 << 18  # weights quantised at a time, so that intermediates stay in the CPU cache
_PAIR = {2: torch.int32, 1: torch.int16}  # dtype of a pair, by the bytes of an element


def is_whole(weight: Tensor) -> bool:
    """Whether this is a bfloat16 matrix on the CPU of whole pairs of panels and whole blocks."""
    whole = weight.dim() == 2 and weight.shape[0] % (2 * PANEL_N) == 0 and weight.shape[1] % BLOCK_K == 0
    return whole and weight.dtype == torch.bfloat16 and weight.device.type == "cpu"


def can_pack(weight: Tensor) -> bool:
    """Whether this matrix is whole and the C++ operators are loaded."""
    return is_whole(weight) and is_native("linear")


def fits_tiles(x: Tensor, operator: str) -> bool:
    """Whether this C++ operator is loaded and supports x: bfloat16 rows of whole blocks."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16 and x.shape[-1] % BLOCK_K == 0 and is_native(operator)


def pack(weight: Tensor) -> Tensor:
    """Pack [out, in] as [out / 16, in / 32, 16, 16, 2]; elements of 16 or 8 bits."""
    return _in_blocks(_pairs(weight).unflatten(0, (-1, PANEL_N)), weight.dtype)


def pack_gated(weight: Tensor) -> Tensor:
    """Pack gate and up stacked, [2 * out, in]: a panel of gates is followed by the panel of their ups."""
    return _in_blocks(_pairs(weight).unflatten(0, (2, -1, PANEL_N)).transpose(0, 1), weight.dtype).flatten(0, 1)


def _pairs(weight: Tensor) -> Tensor:
    """View [out, in] as pairs [out, in / 32, 16]: moving pairs as one element halves the time to pack a model."""
    pairs: Tensor = weight.view(_PAIR[weight.itemsize]).unflatten(1, (-1, BLOCK_K // 2))
    return pairs


def _in_blocks(panels: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy pairs [..., 16 outputs, in / 32, 16 pairs] to blocks [..., in / 32, 16 pairs, 16 outputs, 2]."""
    blocks: Tensor = panels.movedim(-3, -1).contiguous().view(dtype).unflatten(-1, (PANEL_N, 2))
    return blocks


def unpack(packed: Tensor) -> Tensor:
    """Invert `pack`, for blocks of any dtype."""
    panels, blocks = packed.shape[:2]
    return packed.permute(0, 3, 1, 2, 4).reshape(panels * PANEL_N, blocks * BLOCK_K)


def packed_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Look up rows of a packed matrix: int [N] -> [N, in]."""
    return packed[rows // PANEL_N, :, :, rows % PANEL_N].flatten(1)


def rows_by_panel(packed: Tensor, rows: Tensor, unpack: Callable[[Tensor], Tensor]) -> Tensor:
    """Look up rows of a packed matrix, int [N] -> [N, in], if `unpack` decodes whole panels only."""
    panels: Tensor = unpack(packed[rows // PANEL_N]).unflatten(0, (-1, PANEL_N))
    return panels[torch.arange(len(rows)), rows % PANEL_N]


def by_panel(values: Tensor) -> Tensor:
    """Reorder one value per output and block, [out, K], as [S, K, 16]: S panels of K blocks."""
    panels: Tensor = values.unflatten(0, (-1, PANEL_N)).transpose(1, 2).contiguous()
    return panels


def row_chunks(weight: Tensor) -> Sequence[Tensor]:
    """Split the rows of [out, in] into chunks of whole panels and about CHUNK weights."""
    chunks: Sequence[Tensor] = weight.split(max(1, CHUNK // (PANEL_N * weight.shape[1])) * PANEL_N)
    return chunks
