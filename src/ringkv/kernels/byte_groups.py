"""Byte groups: int8 weights whose groups of 32 along K have a scale, and a minimum if their origin has minimums.

    weight = scale * multiple * q + minimum * least_multiple

A scale is float16, its multiple an integer for each 16 elements. So blocks of GGUF's Q8_0, Q5_0, Q5_1, Q5_K and Q6_K,
of MXFP4 and of checkpoints with 8-bit integers in groups are stored without rounding: Q6_K has an integer scale for
each 16, the K types have 6-bit scales times a factor, and elements of MXFP4 are halves of -12 .. 12.

S panels, K blocks of each, L lines of a block: scales and multiples, minimums if there are any, and 8 of q.

int8-groups     products of up to 8 rows do not round the weights; more rows widen them to bfloat16    [S, K, L, 4, 16]
int8-groups-a8  products of more rows rotate both operands and round them to int8                   [S, K, L, 4, 4, 4]

Bytes: out * in * 9 / 8 without minimums, out * in * 10 / 8 with them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.kernels.packing import BLOCK_K, PANEL_N, by_panel, pack, row_chunks, unpack
from ringkv.kernels.quantize import LINE, LINES, Int4Groups, stacked

HALF = BLOCK_K // 2  # elements that share a multiple of the scale
LARGEST = 127
LINE_16_BIT, LINE_A8 = (4, 16), (4, 4, 4)  # shapes of a line, by which the C++ operators tell the formats apart


class ByteGroups(NamedTuple):
    """A matrix [out, in]: q int8 [out, in]; scale float16 [out, in / 32]; multiple int8 [out, in / 16].

    minimum, minimum_multiple: float16 and int8 [out, in / 32]; None if all are zero.
    """

    q: Tensor
    scale: Tensor
    multiple: Tensor
    minimum: Tensor | None = None
    minimum_multiple: Tensor | None = None

    def with_minimums(self) -> "ByteGroups":
        """Return these groups with minimums, which are zero if there were none."""
        if self.minimum is not None:
            return self
        zeros = torch.zeros(self.scale.shape, dtype=torch.int8)
        return self._replace(minimum=zeros.half(), minimum_multiple=zeros)


def of_int4(groups: Int4Groups) -> ByteGroups:
    """Return weights in 4 bits as groups of bytes, without rounding."""
    ones = torch.ones(groups.scale.shape, dtype=torch.int8)
    return ByteGroups(groups.q.view(torch.int8), groups.scale, ones.repeat_interleave(2, 1), groups.minimum, ones)


def nearest(weight: Tensor) -> ByteGroups:
    """Quantise [out, in], a chunk of rows at a time: a group's largest magnitude is 127 steps."""
    return stacked([_nearest(chunk) for chunk in row_chunks(weight)])


def _nearest(weight: Tensor) -> ByteGroups:
    groups = weight.float().unflatten(1, (-1, BLOCK_K))
    scale = (groups.abs().amax(-1) / LARGEST).half()
    steps = scale.float().masked_fill(scale == 0, torch.inf)[..., None]
    q = (groups / steps).round_().clamp_(-LARGEST, LARGEST).flatten(1).to(torch.int8)
    return ByteGroups(q, scale, torch.ones(len(q), q.shape[1] // HALF, dtype=torch.int8))


def pack_groups(weight: Tensor | ByteGroups, line: tuple[int, ...] = LINE_16_BIT) -> Tensor:
    """Pack [out, in], bfloat16 or already in groups, as int8 [S, K, L, *line]."""
    groups = weight if isinstance(weight, ByteGroups) else nearest(weight)
    first, second = groups.multiple.unflatten(1, (-1, 2)).unbind(-1)
    header = [_line(groups.scale, first, second)]
    if groups.minimum is not None and groups.minimum_multiple is not None:
        header.append(_line(groups.minimum, groups.minimum_multiple, torch.zeros_like(first)))
    blocks = pack(groups.q).flatten(2).unflatten(2, (LINES, LINE))
    return torch.cat((torch.stack(header, dim=2), blocks), dim=2).view(*blocks.shape[:2], -1, *line)


def unpack_groups(packed: Tensor) -> Tensor:
    """Invert packing in either format: float32 [out, in]."""
    lines = packed.flatten(3)
    scale, first, second = _halves_and_bytes(lines[:, :, 0])
    scales = scale[:, :, None] * torch.stack((first, second), dim=2)  # [S, K, 2 halves, 16 outputs]
    q = lines[:, :, -LINES:].reshape(*lines.shape[:2], 2, HALF // 2, PANEL_N, 2)
    weight = q * scales[:, :, :, None, :, None]
    if has_minimums(packed):
        least, multiple, _ = _halves_and_bytes(lines[:, :, 1])
        weight += (least * multiple)[:, :, None, None, :, None]
    return unpack(weight.flatten(2, 3))


def has_minimums(packed: Tensor) -> bool:
    """Whether the groups of a packed matrix have minimums."""
    return packed.shape[2] > LINES + 1


def _line(halves: Tensor, *each: Tensor) -> Tensor:
    """Return a line of each block, int8 [S, K, 64], of values [out, K]: float16 and twice int8."""
    parts = [by_panel(values).view(torch.int8).flatten(2) for values in (halves, *each)]
    return torch.cat(parts, dim=2)


def _halves_and_bytes(line: Tensor) -> Sequence[Tensor]:
    """Invert `_line`: three float32 [S, K, 16]."""
    halves, first, second = line.contiguous().split((2 * PANEL_N, PANEL_N, PANEL_N), dim=-1)
    return halves.contiguous().view(torch.float16).float(), first.float(), second.float()
