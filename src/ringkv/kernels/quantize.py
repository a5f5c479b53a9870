"""Quantisation: the panels and blocks of `packing` in 8 or 4 bits per weight, and back.

S panels, K blocks of each. Only weights are quantised; products widen them to bfloat16 one block at a time.

int8  one scale per output: weight = scale * q, q in -127 .. 127    [S, 1 + 8 K, 64]: a line of scales, then the blocks
int4  groups of 32 along K: weight = scale * q + minimum, q in 0 .. 15    [S, K, 5, 64]: a line of both, then q

Groups have the size of GGUF's Q4_0, Q4_1 and Q4_K, so weights from such a file are packed without requantisation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ringkv.kernels.packing import BLOCK_K, PANEL_N, by_panel, pack, packed_rows, row_chunks, unpack

LINE = 64  # bytes
LINES = PANEL_N * BLOCK_K // LINE  # of an int8 block
TINY = 1e-30  # replaces a divisor of zero


class Int4Groups(NamedTuple):
    """A matrix [out, in] in 4 bits: q uint8 [out, in], 0 to 15; scale and minimum float16 [out, in / 32]."""

    q: Tensor
    scale: Tensor
    minimum: Tensor


class Int8Rows(NamedTuple):
    """A matrix [out, in] in 8 bits: q int8 [out, in], -127 to 127; scale float32 [out]."""

    q: Tensor
    scale: Tensor


Quantised = TypeVar("Quantised", bound=tuple[Tensor | None, ...])
"""A matrix of a NamedTuple of this module, or of `byte_groups`: tensors, of which some may be None."""


def chunks(matrix: Quantised, count: int) -> list[Quantised]:
    """Split a matrix by rows."""
    parts = ([None] * count if part is None else part.chunk(count) for part in matrix)
    return [type(matrix)(*some) for some in zip(*parts, strict=True)]


def stacked(matrices: Sequence[Quantised]) -> Quantised:
    """Concatenate matrices along their rows. A part is None in all of them or in none."""
    parts: list[Any] = [None if some[0] is None else torch.cat(some) for some in zip(*matrices, strict=True)]
    return type(matrices[0])(*parts)


def pack_int8(weight: Tensor | Int8Rows) -> Tensor:
    """Pack [out, in], bfloat16 or already quantised, as int8 [S, 1 + 8 K, 64]; a row's largest weight is exact."""
    if isinstance(weight, Int8Rows):
        return _int8_panels(weight)
    return torch.cat([_int8_panels(_nearest_int8(chunk)) for chunk in row_chunks(weight)])


def rows_of(weight: Tensor) -> Int8Rows:
    """Quantise bfloat16 [out, in], a chunk of rows at a time."""
    return stacked([_nearest_int8(chunk) for chunk in row_chunks(weight)])


def unpack_int8(packed: Tensor) -> Tensor:
    """Invert `pack_int8` except for rounding: float32 [out, in], because products scale float32 sums."""
    return unpack(_int8_blocks(packed)).float() * _int8_scales(packed).flatten()[:, None]


def int8_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Look up rows of a packed matrix: int [N] -> bfloat16 [N, in]."""
    q, scales = int8_parts(packed, rows)
    return (q * scales).bfloat16()


def int8_parts(packed: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Look up rows of a packed matrix: int [N] -> int8 [N, in] and their scales, float32 [N, 1]."""
    scales = _int8_scales(packed)[rows // PANEL_N, rows % PANEL_N]
    return packed_rows(_int8_blocks(packed), rows), scales[:, None]


def pack_int4(weight: Tensor | Int4Groups) -> Tensor:
    """Pack [out, in], bfloat16 or already in groups, as uint8 [S, K, 5, 64]."""
    q, scale, minimum = weight if isinstance(weight, Int4Groups) else groups_of(weight)
    words = pack(q).unflatten(2, (4, 4)).flatten(-2).unflatten(-1, (2, PANEL_N))
    lines = (words[..., 0, :] | words[..., 1, :] << 4).transpose(-1, -2).flatten(2).unflatten(2, (4, LINE))
    header = torch.stack([by_panel(half) for half in (scale, minimum)], dim=2).view(torch.uint8).flatten(2)
    return torch.cat((header[:, :, None], lines), dim=2)


def groups_of(weight: Tensor) -> Int4Groups:
    """Quantise bfloat16 [out, in], a chunk of rows at a time."""
    return stacked([_least_squares(chunk) for chunk in row_chunks(weight)])


def unpack_int4(packed: Tensor) -> Tensor:
    """Invert `pack_int4` except for rounding: float32 [out, in]. Products of many rows round it to bfloat16.

    The lines of w4a8 and w4a4 have more dimensions.
    """
    packed = packed.flatten(3)
    scale, minimum = (_broadcastable(packed[:, :, 0].unflatten(-1, (2, -1))[:, :, i]) for i in range(2))
    words: Tensor = packed[:, :, 1:].unflatten(-1, (PANEL_N, 4)).transpose(-1, -2)  # [S, K, 4 lines, 4 bytes, 16 words]
    q = torch.stack((words & 15, words >> 4), dim=-2).reshape(*packed.shape[:2], PANEL_N, PANEL_N, 2)
    return unpack(q * scale + minimum)


def _nearest_int8(weight: Tensor) -> Int8Rows:
    wide = weight.float()
    scale = wide.abs().amax(-1) / 127
    return Int8Rows((wide / scale.clamp(min=TINY)[:, None]).round_().to(torch.int8), scale)


def _int8_panels(weight: Int8Rows) -> Tensor:
    scales = weight.scale.contiguous().view(-1, PANEL_N).view(torch.int8)
    blocks = pack(weight.q).view(-1, PANEL_N * weight.q.shape[1])
    return torch.cat((scales, blocks), dim=1).view(len(scales), -1, LINE)


def _int8_blocks(packed: Tensor) -> Tensor:
    blocks: Tensor = packed[:, 1:].unflatten(1, (-1, LINES)).view(len(packed), -1, PANEL_N, PANEL_N, 2)
    return blocks


def _int8_scales(packed: Tensor) -> Tensor:
    """Return float32 [S, 16]."""
    return packed[:, 0].contiguous().view(torch.float32)


def _least_squares(weight: Tensor) -> Int4Groups:
    """Round between each group's ends, fit scale and minimum to that q by least squares, and round again."""
    groups = weight.float().unflatten(1, (-1, BLOCK_K))
    minimum, maximum = torch.aminmax(groups, dim=-1, keepdim=True)
    q = _nearest(groups, (maximum - minimum) / 15, minimum)
    mean, q_mean = groups.mean(-1, keepdim=True), q.mean(-1, keepdim=True)
    varies = (q - q_mean).square_().sum(-1, keepdim=True)
    scale = ((q - q_mean) * groups).sum(-1, keepdim=True) / varies.clamp(min=TINY)
    scale, minimum = scale.half(), (mean - scale * q_mean).half()
    q = _nearest(groups, scale.float(), minimum.float())
    return Int4Groups(q.flatten(1).to(torch.uint8), scale[..., 0], minimum[..., 0])


def _nearest(groups: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    return ((groups - minimum) / scale.clamp(min=TINY)).round_().clamp_(0, 15)


def _broadcastable(line: Tensor) -> Tensor:
    """Convert half a line of bytes [S, K, 32] to float32 [S, K, 1, 16, 1], which broadcasts over blocks."""
    return line.contiguous().view(torch.float16).float()[:, :, None, :, None]
