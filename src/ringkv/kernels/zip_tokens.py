"""zip_tokens: how a prompt fills a slot in the format zipcache and decoding adds to it; in plain torch, the reference.

The tokens of the prompt that are never evicted become chunk 0. The others, like those that decoding adds, go through
the buffer: if it is full when a token comes, it becomes a chunk, with parameters and a choice of salient tokens of its
part. Nothing is encoded twice.

The new chunk takes a free place, or that of the oldest one if all tokens that the layout calls live are still there
without it. So a slot shows its ring's tokens and up to two chunks more.

H key-value heads, n tokens, D elements of a vector.
"""

import torch
from torch import Tensor

from ringkv.base.zip_sizes import CHUNK, counts_of
from ringkv.kernels.constants import BUFFERED, CHUNKS, FIRST, FIXED, OLDEST
from ringkv.kernels.zip_codes import decode_keys, decode_values, encode_keys, encode_values, value_factors
from ringkv.kernels.zip_slots import Place, ZipSlots, parts, place, places

AT_ONCE = 64  # chunks of a prompt that are encoded together


def fill(slot: ZipSlots, keys: Tensor, values: Tensor, fixed: int, saliency: Tensor) -> None:
    """Fill a slot with a prompt's tokens [H, n, D], in place.

    The first `fixed` stay; the others are in order of age. saliency: float32 [H, n], the mean attention that each got.
    """
    n = keys.shape[1]
    counts = counts_of(n, fixed)
    sinks, chunks = counts[FIRST], counts[CHUNKS]
    slot.plain_keys[:, :sinks], slot.plain_values[:, :sinks] = keys[:, :sinks], values[:, :sinks]
    slot.counts[:] = slot.counts.new_tensor(counts)
    for first in (0, *range(1, 1 + chunks, AT_ONCE)):
        count = min(AT_ONCE, 1 + chunks - first) if first else 1
        start = fixed + (first - 1) * CHUNK if first else sinks
        part = slice(start, start + count * CHUNK if first else fixed)
        _encode(slot, place(counts, first), keys[:, part], values[:, part], saliency[:, part], count)
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
        for bits, part in parts(slot, at).items():
            keys.append(decode_keys(part.keys, part.channels[:, 0], bits))
            values.append(decode_values(part.values, slot.value_factors[:, at.chunk], part.ranges, bits))
    return torch.cat(keys, 1), torch.cat(values, 1)


def salient(saliency: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` most salient of n tokens [H, n], and the others: int64 [H, ...] each, in order.

    Of tokens with equal saliency the earlier one is salient.
    """
    order = saliency.sort(dim=1, descending=True, stable=True).indices
    return order[:, :count].sort(1).values, order[:, count:].sort(1).values


def _encode(slot: ZipSlots, at: Place, keys: Tensor, values: Tensor, saliency: Tensor, chunks: int = 1) -> None:
    """Write so many chunks of keys and values [H, chunks * n, D]; `at` is the place of the first one."""
    tokens = at.highs + at.lows
    keys, values, saliency = (
        x.unflatten(1, (chunks, tokens)).flatten(0, 1)  # [H * chunks, n, ...]
        for x in (keys.float(), values.float(), saliency)
    )
    factors = value_factors(values)
    slot.value_factors[:, at.chunk : at.chunk + chunks] = factors.unflatten(0, (-1, chunks))
    for index, (bits, part) in zip(salient(saliency, at.highs), parts(slot, at, chunks).items(), strict=True):
        rows = index[..., None].expand(-1, -1, keys.shape[2])
        encoded = *encode_keys(keys.gather(1, rows), bits), *encode_values(values.gather(1, rows), factors, bits)
        for tensor, new in zip(part, encoded, strict=True):
            tensor[:] = new.view(tensor.shape)


def _fill_buffer(slot: ZipSlots, keys: Tensor, values: Tensor, saliency: Tensor) -> None:
    """Write tokens to the buffer, as if each had got its mean attention in a step of itself and of all later ones."""
    first, tokens = slot.held()[FIRST], keys.shape[1]
    slot.plain_keys[:, first : first + tokens], slot.plain_values[:, first : first + tokens] = keys, values
    slot.attention[:, :tokens] = saliency * torch.arange(tokens, 0, -1, device=saliency.device)


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
    steps = torch.arange(CHUNK, 0, -1, device=slot.attention.device)
    at = place(count, 1 + chunk)
    _encode(slot, at, slot.plain_keys[:, buffer], slot.plain_values[:, buffer], slot.attention / steps)
    slot.counts[:, BUFFERED] = 0
