"""Encoding: how the vectors of a plane are stored, and the ENCODINGS that decode attention reads.

An encoded plane has elements and a scale per token and key-value head. A center per slot and head is subtracted from
keys, as in SageAttention (arXiv 2410.02367, section 4.2): it adds the same to all scores of a query, so the softmax
does not change.

The keys of the first entries may be beside the center, exactly. Those tokens get most of the attention (StreamingLLM,
arXiv 2309.17453, section 3.1), so an error of their scores costs the most.

D elements of a vector.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import LATENT_GROUP, PlaneFormat
from ringkv.kernels import int4, int8

NO_KEY = float("nan")  # an element of a first key that is not kept exactly


class Part(NamedTuple):
    """One tensor of a plane: its dtype, None for the engine's, and its shape of one vector of D elements."""

    dtype: torch.dtype | None
    shape: Callable[[int], tuple[int, ...]]


class Encoding(NamedTuple):
    """How a vector is stored.

    parts: the tensors of a plane. encode: vectors [..., D] -> one tensor [..., *shape(D)] for each part. decode: its
    inverse, float32 [..., D], or the dtype of plain vectors. has_centers: a center is subtracted from keys.
    """

    parts: tuple[Part, ...]
    encode: Callable[[Tensor], tuple[Tensor, ...]]
    decode: Callable[..., Tensor]
    has_centers: bool = True


PLAIN = Encoding(
    (Part(None, lambda width: (width,)),), lambda vectors: (vectors,), lambda vectors: vectors, has_centers=False
)
ENCODINGS: Mapping[PlaneFormat, Encoding] = {
    "plain": PLAIN,
    "int8": Encoding(
        (Part(torch.int8, lambda width: (width,)), Part(torch.float32, lambda _: ())), int8.encode, int8.decode
    ),
    "int4": Encoding(
        (Part(torch.uint8, lambda width: (width // 2,)), Part(torch.float16, lambda _: (2,))), int4.encode, int4.decode
    ),
}
"""Encodings of keys and values of heads."""


def by_groups(encoding: Encoding) -> Encoding:
    """Return the encoding of latents [..., D] by groups of LATENT_GROUP elements, each with scales of its own.

    Groups begin at the first element. If latents have whole groups, the rotated key is the last group, alone.
    DeepSeek's own fp8 cache has the same groups, but rotated keys in 16 bits, which would take 10% more bytes in 8 bits
    and 30% more in 4 bits.
    """
    elements, scales = encoding.parts
    (group_bytes,) = elements.shape(LATENT_GROUP)

    def shape(width: int) -> tuple[int, ...]:
        return -(-width // LATENT_GROUP), *scales.shape(LATENT_GROUP)

    def encode(vectors: Tensor) -> tuple[Tensor, ...]:
        groups = zip(*map(encoding.encode, vectors.split(LATENT_GROUP, -1)), strict=True)
        of_elements, of_scales = groups
        return torch.cat(of_elements, -1), torch.stack(of_scales, vectors.dim() - 1)

    def decode(stored: Tensor, ranges: Tensor) -> Tensor:
        groups = zip(stored.split(group_bytes, -1), ranges.unbind(stored.dim() - 1), strict=True)
        return torch.cat([encoding.decode(*group) for group in groups], -1)

    return Encoding((elements, Part(scales.dtype, shape)), encode, decode)


LATENT_ENCODINGS: Mapping[PlaneFormat, Encoding] = {
    name: encoding if encoding is PLAIN else by_groups(encoding) for name, encoding in ENCODINGS.items()
}
"""Encodings of latents."""


def with_first(keys: Tensor, first: Tensor) -> Tensor:
    """Return keys [B, H, C, D] with those in `first` [B, H, E D] that are not NO_KEY, E first keys of a head."""
    exact = first.unflatten(-1, (-1, keys.shape[-1]))[:, :, : keys.shape[2]]
    known = torch.where(exact.isnan(), keys[:, :, : exact.shape[2]], exact)
    return torch.cat((known, keys[:, :, exact.shape[2] :]), 2)


def split_centers(centers: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the centers [..., D] and the first keys [..., E D] of centers [..., (1 + E) D]."""
    center, first = centers.split([width, centers.shape[-1] - width], -1)
    return center, first
