"""Quantisation: the strips and blocks of `packing` in eight or four bits a weight, and 16-bit numbers of them again.

S strips, K blocks of each. Weights alone are quantised; the products widen them to bfloat16 a block at a time.

int8  one scale an output: weight = scale * q, q in -127 .. 127          [S, 1 + 8 K, 64]: a line of scales, then blocks
int4  groups of 32 inner numbers: weight = scale * q + least, q in 0 .. 15    [S, K, 5, 64]: each a line of both, and q

The groups are as long as those of GGUF's Q4_0, Q4_1 and Q4_K: what comes from such a file is packed as it is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.kernels.packing import DEEP, WIDE, pack, packed_rows, unpack

LINE = 64  # bytes
LINES = WIDE * DEEP // LINE  # of a block, at a byte a number
CHUNK = 1 << 18  # weights that are quantised at a time, so that what lies between stays in the cache
TINY = 1e-30  # in place of a scale of zero


class Groups(NamedTuple):
    """A matrix [out, in] in four bits: q uint8 [out, in], 0 to 15; scale and least float16 [out, in / 32]."""

    q: Tensor
    scale: Tensor
    least: Tensor

    def chunk(self, count: int) -> list["Groups"]:
        """By rows, as tensors do."""
        return [Groups(*parts) for parts in zip(*(one.chunk(count) for one in self), strict=True)]


def stacked(parts: Sequence[Groups]) -> Groups:
    """Matrices under each other."""
    return Groups(*(torch.cat(one) for one in zip(*parts, strict=True)))


def pack_int8(weight: Tensor) -> Tensor:
    """Bfloat16 [out, in] -> int8 [S, 1 + 8 K, 64]; each output's largest number is exact."""
    return torch.cat([_int8(chunk) for chunk in _chunks(weight)])


def unpack_int8(packed: Tensor) -> Tensor:
    """The inverse but for rounding, float32 [out, in]: products scale their sums, which are float32."""
    return unpack(_int8_blocks(packed)).float() * _int8_scales(packed).flatten()[:, None]


def int8_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Rows of what `pack_int8` was given, bfloat16: int [N] -> [N, in]."""
    scales = _int8_scales(packed)[rows // WIDE, rows % WIDE]
    return (packed_rows(_int8_blocks(packed), rows) * scales[:, None]).bfloat16()


def pack_int4(weight: Tensor | Groups) -> Tensor:
    """[out, in], bfloat16 or grouped already -> uint8 [S, K, 5, 64]."""
    q, scale, least = weight if isinstance(weight, Groups) else groups_of(weight)
    words = pack(q).unflatten(2, (4, 4)).flatten(-2).unflatten(-1, (2, WIDE))
    lines = (words[..., 0, :] | words[..., 1, :] << 4).transpose(-1, -2).flatten(2).unflatten(2, (4, LINE))
    head = torch.stack([_strips(one) for one in (scale, least)], dim=2).view(torch.uint8).flatten(2)
    return torch.cat((head[:, :, None], lines), dim=2)


def groups_of(weight: Tensor) -> Groups:
    """Bfloat16 [out, in], a chunk of rows at a time."""
    return stacked([_least_squares(chunk) for chunk in _chunks(weight)])


def unpack_int4(packed: Tensor) -> Tensor:
    """The inverse but for rounding, float32 [out, in]. Products of many rows round it to bfloat16; few do not."""
    scale, least = (_outputs(packed[:, :, 0].unflatten(-1, (2, -1))[:, :, i]) for i in range(2))
    words: Tensor = packed[:, :, 1:].unflatten(-1, (WIDE, 4)).transpose(-1, -2)  # [S, K, 4 lines, 4 bytes, 16 words]
    q = torch.stack((words & 15, words >> 4), dim=-2).reshape(*packed.shape[:2], WIDE, WIDE, 2)
    return unpack(q * scale + least)


def int4_rows(packed: Tensor, rows: Tensor) -> Tensor:
    """Rows of what `pack_int4` was given, bfloat16: int [N] -> [N, in]."""
    strips: Tensor = unpack_int4(packed[rows // WIDE]).bfloat16().unflatten(0, (-1, WIDE))
    return strips[torch.arange(len(rows)), rows % WIDE]


def _chunks(weight: Tensor) -> Sequence[Tensor]:
    """Whole strips."""
    chunks: Sequence[Tensor] = weight.split(max(1, CHUNK // (WIDE * weight.shape[1])) * WIDE)
    return chunks


def _int8(weight: Tensor) -> Tensor:
    wide = weight.float()
    scale = wide.abs().amax(-1) / 127
    q = (wide / scale.clamp(min=TINY)[:, None]).round_().to(torch.int8)
    scales, blocks = scale.view(-1, WIDE).view(torch.int8), pack(q).view(-1, WIDE * weight.shape[1])
    return torch.cat((scales, blocks), dim=1).view(len(scales), -1, LINE)


def _int8_blocks(packed: Tensor) -> Tensor:
    blocks: Tensor = packed[:, 1:].unflatten(1, (-1, LINES)).view(len(packed), -1, WIDE, WIDE, 2)
    return blocks


def _int8_scales(packed: Tensor) -> Tensor:
    """float32 [S, 16]"""
    return packed[:, 0].contiguous().view(torch.float32)


def _least_squares(weight: Tensor) -> Groups:
    """Of all scales and least values, those that fit best what is nearest between a group's ends; and its q again."""
    groups = weight.float().unflatten(1, (-1, DEEP))
    least, most = torch.aminmax(groups, dim=-1, keepdim=True)
    q = _nearest(groups, (most - least) / 15, least)
    mean, q_mean = groups.mean(-1, keepdim=True), q.mean(-1, keepdim=True)
    varies = (q - q_mean).square_().sum(-1, keepdim=True)
    scale = ((q - q_mean) * groups).sum(-1, keepdim=True) / varies.clamp(min=TINY)
    scale, least = scale.half(), (mean - scale * q_mean).half()
    q = _nearest(groups, scale.float(), least.float())
    return Groups(q.flatten(1).to(torch.uint8), scale[..., 0], least[..., 0])


def _nearest(groups: Tensor, scale: Tensor, least: Tensor) -> Tensor:
    return ((groups - least) / scale.clamp(min=TINY)).round_().clamp_(0, 15)


def _strips(numbers: Tensor) -> Tensor:
    """float16 [out, K], one a group -> [S, K, 16]."""
    return numbers.view(-1, WIDE, numbers.shape[1]).transpose(1, 2).contiguous()


def _outputs(line: Tensor) -> Tensor:
    """Half a line of bytes, [S, K, 32] -> float32 [S, K, 1, 16, 1], to be had by blocks."""
    return line.contiguous().view(torch.float16).float()[:, :, None, :, None]
