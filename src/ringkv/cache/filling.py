"""filling: rows of slots are filled with entries of a staged prompt, encoded.

L layers of a group, R rows, H key-value heads, C entries per row, S staged entries, D elements of a vector, W of the
centers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ringkv.base.cache_spec import Plane
from ringkv.cache.earlier import Earlier
from ringkv.kernels.encoding import ENCODINGS, LATENT_ENCODINGS, NO_KEY, PLAIN, Encoding, split_centers, with_first
from ringkv.kernels.take_rows import take_rows

ENCODED_AT_ONCE = 8192
"""Entries of a head: encoding all 131,072 of Llama's would take gigabytes of a GPU's memory."""


class Kept(NamedTuple):
    """What a row is filled with.

    staged: the planes [L, R, H, S, D] of keys and of values, plain. lane: their row. entries: int64 [L, H, n], those
    that are kept; if heads are ragged, below 0 after those of a head with fewer. fixed: so many first entries will not
    be overwritten. Their keys may be kept exactly. saliency: float32 [L, H, n] for slots in chunks or in pages, else
    None. earlier: of each plane, the entries that an earlier turn has encoded, if there are any.
    """

    staged: Sequence[Tensor]
    lane: int
    entries: Tensor
    fixed: int = 0
    saliency: Tensor | None = None
    earlier: Sequence[Earlier] = ()

    @property
    def length(self) -> int:
        """n, of the head with the most entries."""
        return self.entries.shape[-1]

    def taken(self, plane: int, layer: int, part: slice = slice(None)) -> Tensor:
        """Return the vectors [H, n, D] of a layer in a plane, or a part of them."""
        staged, index = self.staged[plane], self.entries[layer : layer + 1, :, part]
        vectors = staged.new_empty(1, *index.shape[1:], staged.shape[-1])
        take_rows(staged[layer : layer + 1], self.lane, index, vectors)
        return vectors[0]


def encoding_of(plane: Plane) -> Encoding:
    """Return how a plane stores vectors: those of heads whole, or latents by groups."""
    return (ENCODINGS if plane.group is None else LATENT_ENCODINGS)[plane.format]


def decode(plane: Plane, tensors: Sequence[Tensor], centers: Tensor | None) -> Tensor:
    """Return the vectors [L, H, n, D] of a plane's tensors [L, H, n, ...]; centers: [L, H, W] of encoded keys."""
    vectors: Tensor = encoding_of(plane).decode(*tensors)
    if centers is None:
        return vectors
    center, first = split_centers(centers, vectors.shape[-1])
    keys: Tensor = with_first(vectors, first) + center[..., None, :]
    return keys


def fill(
    kept: Kept, plane: int, layer: int, encoding: Encoding, target: Sequence[Tensor], centers: Tensor | None
) -> None:
    """Fill the first entries of a layer's tensors [H, C, ...] in a plane, and set those after them to 0, in place.

    centers: [H, W] of encoded keys.
    """
    if encoding is PLAIN:
        of_layer = slice(layer, layer + 1)
        return take_rows(kept.staged[plane][of_layer], kept.lane, kept.entries[of_layer], target[0][None])
    taken = kept.taken(plane, layer).float()
    if centers is not None:
        taken -= _centered(kept, plane, layer, taken, centers)[:, None]
    _encode(encoding, taken, target)
    for tensor in target:
        tensor[:, kept.length :] = 0
    if kept.earlier:
        kept.earlier[plane].put_back(layer, kept.entries[layer], target)


def _centered(kept: Kept, plane: int, layer: int, taken: Tensor, centers: Tensor) -> Tensor:
    """Write the centers [H, W] of a layer's keys [H, n, D], and return what is subtracted from these, [H, D].

    It is the mean of the keys, or stays that of earlier entries.
    """
    center, *first = centers.unflatten(-1, (-1, taken.shape[-1])).unbind(1)
    earlier = kept.earlier[plane].centers if kept.earlier else None
    before = None if earlier is None else earlier[layer, :, : taken.shape[-1]]
    center[:] = taken.sum(1) / max(1, taken.shape[1]) if before is None else before
    for entry, exact in enumerate(first):
        is_exact = entry < min(taken.shape[1], kept.fixed)
        exact[:] = taken[:, entry] - center if is_exact else NO_KEY
    subtracted: Tensor = center
    return subtracted


def _encode(encoding: Encoding, vectors: Tensor, target: Sequence[Tensor]) -> None:
    """Encode vectors [H, n, D] to the first entries of tensors [H, C, ...]."""
    count = vectors.shape[1]
    for some in (slice(first, min(first + ENCODED_AT_ONCE, count)) for first in range(0, count, ENCODED_AT_ONCE)):
        for tensor, new in zip(target, encoding.encode(vectors[:, some]), strict=True):
            tensor[:, some] = new


def fill_heads(
    kept: Kept, plane: int, encoding: Encoding, target: Sequence[Tensor], room: Tensor, centers: Tensor | None
) -> None:
    """Fill a plane's tensors [E, ...] that ragged heads divide, head after head, in place.

    room: int64 [L, H], the entries of each head. Those after its own become 0. centers: [L, H, W] of encoded keys.
    """
    first, heads = 0, room.shape[1]
    for place, size in enumerate(room.flatten().tolist()):
        layer, head = divmod(place, heads)
        index = kept.entries[layer, head]
        taken = kept.staged[plane][layer, kept.lane, head].index_select(0, index[index >= 0])[None]
        if centers is not None:
            taken = taken.float()
            taken -= _centered(kept, plane, layer, taken, centers[layer, head : head + 1])[:, None]
        of_head = [tensor[None, first : first + size] for tensor in target]
        _encode(encoding, taken, of_head)
        for tensor in of_head:
            tensor[:, taken.shape[1] :] = 0
        first += size
