"""ZipSlots: the tensors of slots in the format zipcache, and where a chunk is in them. `zip_tokens` uses them.

A slot begins with sinks and a buffer of the newest tokens, in the engine's dtype. Chunks follow, each with parameters
of its own: chunk 0 has the tokens of a prompt that are never evicted, the others have CHUNK tokens.

S slots, H key-value heads, D elements of a vector; P plain, U salient and V other entries, N chunks: `base.zip_sizes`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.zip_sizes import CHUNK, COUNTS, ZipSizes, salient_of
from ringkv.kernels.constants import CHUNKS, FIXED
from ringkv.kernels.zip_codes import HIGH_BITS, LOW_BITS


class ZipSlots(NamedTuple):
    """The tensors of slots, in the order of operators' arguments. Those of one slot have no S.

    attention: what each key in the buffer got, summed over the decode steps that saw it, mean over query heads.
    """

    plain_keys: Tensor  # [S, H, P, D]
    high_keys: Tensor  # uint8 [S, H, U, D / 2]
    low_keys: Tensor  # uint8 [S, H, V, D / 4]
    key_channels: Tensor  # float16 [S, H, N, 4, D]: scales and minima in 4 bits, then in 2 bits
    attention: Tensor  # float32 [S, H, CHUNK]
    plain_values: Tensor  # [S, H, P, D]
    high_values: Tensor  # uint8 [S, H, U, D / 2]
    low_values: Tensor  # uint8 [S, H, V, D / 4]
    value_factors: Tensor  # float16 [S, H, N, D]
    value_ranges: Tensor  # float16 [S, H, U + V, 2]
    counts: Tensor  # int32 [S, H, 5], the same for all heads

    def of(self, slot: int) -> "ZipSlots":
        """Return one slot, as views."""
        return ZipSlots(*(tensor[slot] for tensor in self))

    def held(self) -> list[int]:
        """Return the counts of one slot: how many it holds of what."""
        counts: list[int] = self.counts[0].tolist()
        return counts


def allocate(shape: Sequence[int], width: int, sizes: ZipSizes, new: Callable[..., Tensor]) -> ZipSlots:
    """Return empty slots of a shape [..., H]. `new` makes a tensor from a shape and an optional dtype."""

    def vectors() -> tuple[Tensor, Tensor, Tensor]:
        high, low = (*shape, sizes.high, width // 2), (*shape, sizes.low, width // 4)
        plain = new((*shape, sizes.plain, width))
        return plain, new(high, dtype=torch.uint8), new(low, dtype=torch.uint8)

    def half(*rest: int) -> Tensor:
        return new((*shape, *rest), dtype=torch.float16)

    return ZipSlots(
        *vectors(),
        half(sizes.chunks, 4, width),
        new((*shape, CHUNK), dtype=torch.float32),
        *vectors(),
        half(sizes.chunks, width),
        half(sizes.high + sizes.low, 2),
        new((*shape, COUNTS), dtype=torch.int32),
    )


class Place(NamedTuple):
    """Where a chunk is in a slot: its parameters; its first salient and other entry; how many it has of each."""

    chunk: int
    high: int
    low: int
    highs: int
    lows: int


def places(count: list[int]) -> list[Place]:
    """Return the places of the chunks that a slot has."""
    return [place(count, chunk) for chunk in range(1 + count[CHUNKS])]


def place(count: list[int], chunk: int) -> Place:
    """Return the place of chunk 0, or of the chunk with this number after it."""
    highs, salient = salient_of(count[FIXED]), salient_of(CHUNK)
    lows, others = count[FIXED] - highs, CHUNK - salient
    if chunk == 0:
        return Place(0, 0, 0, highs, lows)
    return Place(chunk, highs + (chunk - 1) * salient, lows + (chunk - 1) * others, salient, others)


class Part(NamedTuple):
    """The tokens of chunks that have as many bits, as views of a slot's tensors."""

    keys: Tensor
    channels: Tensor  # [H, chunks, 2, D]
    values: Tensor
    ranges: Tensor


def parts(slot: ZipSlots, at: Place, chunks: int = 1) -> dict[int, Part]:
    """Return the parts of so many chunks by their bits; `at` is the place of the first one."""
    high, low = slice(at.high, at.high + chunks * at.highs), slice(at.low, at.low + chunks * at.lows)
    channels, first_low = slot.key_channels[:, at.chunk : at.chunk + chunks], slot.high_keys.shape[1]
    low_ranges = slot.value_ranges[:, first_low:][:, low]
    return {
        HIGH_BITS: Part(
            slot.high_keys[:, high], channels[:, :, :2], slot.high_values[:, high], slot.value_ranges[:, high]
        ),
        LOW_BITS: Part(slot.low_keys[:, low], channels[:, :, 2:], slot.low_values[:, low], low_ranges),
    }
