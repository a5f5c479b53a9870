"""ZipSlots: what slots in the format zipcache hold; `fill`, `append` and `decoded` are the reference of what they do.

A slot begins with sinks and a buffer of the newest tokens, in the engine's dtype. The tokens of the prompt that are
never evicted are its chunk 0. The others, like those that decoding adds, go through the buffer: if it is full when a
token comes, it becomes a chunk, with parameters and a choice of salient tokens of its own. Nothing is encoded twice.

The new chunk takes a free place, or that of the oldest one if all tokens that the layout calls live are still there
without it. So a slot shows its ring's tokens and up to two chunks more.

S slots, H key-value heads, D elements of a vector; P plain, U salient and V other entries, N chunks: `base.zip_sizes`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.zip_sizes import CHUNK, COUNTS, SINKS, ZipSizes, salient_of
from ringkv.kernels.zip_codes import (
    HIGH_BITS,
    LOW_BITS,
    decode_keys,
    decode_values,
    encode_keys,
    encode_values,
    value_factors,
)

FIRST, BUFFERED, FIXED, CHUNKS, OLDEST = range(5)
"""Places of counts: sinks, tokens in the buffer, tokens in chunk 0, chunks after it, the place of the oldest one."""
TENSORS = 11


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
        found: list[int] = self.counts[0].tolist()
        return found


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
    """Return the place of chunk 0, or of the one with this number after it."""
    highs, own = salient_of(count[FIXED]), salient_of(CHUNK)
    lows, rest = count[FIXED] - highs, CHUNK - own
    if chunk == 0:
        return Place(0, 0, 0, highs, lows)
    return Place(chunk, highs + (chunk - 1) * own, lows + (chunk - 1) * rest, own, rest)


def fill(slot: ZipSlots, keys: Tensor, values: Tensor, fixed: int, saliency: Tensor) -> None:
    """Fill a slot with a prompt's tokens [H, n, D], in place.

    The first `fixed` stay; the others are in order of age. saliency: float32 [H, n], the mean attention that each got.
    """
    n, sinks = keys.shape[1], min(SINKS, fixed)
    chunks = max(0, n - fixed - 1) // CHUNK
    slot.plain_keys[:, :sinks], slot.plain_values[:, :sinks] = keys[:, :sinks], values[:, :sinks]
    slot.counts[:] = slot.counts.new_tensor([sinks, 0, fixed - sinks, chunks, 0])
    for at in places(slot.held()):
        start = fixed + (at.chunk - 1) * CHUNK if at.chunk else sinks
        part = slice(start, start + at.highs + at.lows)
        _encode(slot, at, keys[:, part], values[:, part], saliency[:, part])
    rest = slice(fixed + chunks * CHUNK, n)
    _fill_buffer(slot, keys[:, rest], values[:, rest], saliency[:, rest])


def append(slot: ZipSlots, key: Tensor, value: Tensor, live: int) -> None:
    """Add a token's key and value [H, D] to a slot, in place; live: tokens that the layout calls live, with it."""
    if slot.held()[BUFFERED] == CHUNK:
        _encode_buffer(slot, live)
    count = slot.held()
    at = count[FIRST] + count[BUFFERED]
    slot.plain_keys[:, at], slot.plain_values[:, at] = key, value
    slot.attention[:, count[BUFFERED]] = 0
    slot.counts[:, BUFFERED] += 1


def decoded(slot: ZipSlots) -> tuple[Tensor, Tensor]:
    """Return the keys and values of a slot, float32 [H, n, D]: plain entries first."""
    count = slot.held()
    plain = count[FIRST] + count[BUFFERED]
    keys, values = [slot.plain_keys[:, :plain].float()], [slot.plain_values[:, :plain].float()]
    for at in places(count):
        for bits, own in _parts(slot, at).items():
            keys.append(decode_keys(own.keys, own.channels, bits))
            values.append(decode_values(own.values, slot.value_factors[:, at.chunk], own.ranges, bits))
    return torch.cat(keys, 1), torch.cat(values, 1)


def salient(saliency: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` most salient of n tokens [H, n], and the others: int64 [H, ...] each, in order.

    Of tokens with equal saliency the earlier one is salient.
    """
    order = saliency.sort(dim=1, descending=True, stable=True).indices
    return order[:, :count].sort(1).values, order[:, count:].sort(1).values


class _Part(NamedTuple):
    """The tokens of a chunk that have as many bits, as views of a slot's tensors."""

    keys: Tensor
    channels: Tensor  # [H, 2, D]
    values: Tensor
    ranges: Tensor


def _parts(slot: ZipSlots, at: Place) -> dict[int, _Part]:
    """Return a chunk's parts by their bits."""
    high, low = slice(at.high, at.high + at.highs), slice(at.low, at.low + at.lows)
    channels, first_low = slot.key_channels[:, at.chunk], slot.high_keys.shape[1]
    low_ranges = slot.value_ranges[:, first_low:][:, low]
    return {
        HIGH_BITS: _Part(
            slot.high_keys[:, high], channels[:, :2], slot.high_values[:, high], slot.value_ranges[:, high]
        ),
        LOW_BITS: _Part(slot.low_keys[:, low], channels[:, 2:], slot.low_values[:, low], low_ranges),
    }


def _encode(slot: ZipSlots, at: Place, keys: Tensor, values: Tensor, saliency: Tensor) -> None:
    """Write a chunk of keys and values [H, n, D]."""
    keys, values = keys.float(), values.float()
    slot.value_factors[:, at.chunk] = factors = value_factors(values)
    for index, (bits, own) in zip(salient(saliency, at.highs), _parts(slot, at).items(), strict=True):
        rows = index[..., None].expand(-1, -1, keys.shape[2])
        own.keys[:], own.channels[:] = encode_keys(keys.gather(1, rows), bits)
        own.values[:], own.ranges[:] = encode_values(values.gather(1, rows), factors, bits)


def _fill_buffer(slot: ZipSlots, keys: Tensor, values: Tensor, saliency: Tensor) -> None:
    """Write tokens to the buffer, as if each had got its mean attention in a step of itself and of all later ones."""
    first, tokens = slot.held()[FIRST], keys.shape[1]
    slot.plain_keys[:, first : first + tokens], slot.plain_values[:, first : first + tokens] = keys, values
    slot.attention[:, :tokens] = saliency * torch.arange(tokens, 0, -1)
    slot.counts[:, BUFFERED] = tokens


def _encode_buffer(slot: ZipSlots, live: int) -> None:
    """Turn the full buffer into a chunk."""
    count = slot.held()
    chunks, tokens = count[CHUNKS], count[FIRST] + count[FIXED] + count[CHUNKS] * CHUNK
    if chunks and (tokens + 1 >= live or chunks + 1 == slot.key_channels.shape[1]):
        chunk = count[OLDEST]
        slot.counts[:, OLDEST] = (chunk + 1) % chunks
    else:
        chunk = chunks
        slot.counts[:, CHUNKS] += 1
    buffer = slice(count[FIRST], count[FIRST] + CHUNK)
    steps = torch.arange(CHUNK, 0, -1)
    at = place(count, 1 + chunk)
    _encode(slot, at, slot.plain_keys[:, buffer], slot.plain_values[:, buffer], slot.attention / steps)
    slot.counts[:, BUFFERED] = 0
