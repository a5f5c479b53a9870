"""Slots: what decode attention reads and writes. A slot is an encoding of its vectors times a reading of its entries.

B rows of a step, S slots, H key-value heads, G query heads each, C entries per slot in P pages, R places for pages on
the device, D elements of a vector.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat

Allocate = Callable[..., Tensor]
"""Makes a tensor from a shape and an optional `dtype`; it decides the device, the initial contents and the plain dtype.
"""


class Rows(NamedTuple):
    """The slot of each row of a step, the entry that its new token takes, and its live entries; int32 [B] each.

    live includes the new token. A row with live 0 is free. No two rows share a slot. If rows have T tokens each, entry
    and live are [B, T], and a token of a row may be free.
    """

    slot: Tensor
    entry: Tensor
    live: Tensor

    @property
    def of_tokens(self) -> "Rows":
        """The numbers [B * T] of each token, as if it were a row."""
        if self.live.dim() == 1:
            return self
        return Rows(self.slot.repeat_interleave(self.live.shape[1]), self.entry.flatten(), self.live.flatten())


class Residents(NamedTuple):
    """Pages on the device of slots whose planes are in the host's memory.

    keys, values [S, H, R * page, D]. place_of int32 [S, H, P]: the place of each page, or -1. page_in int32 [S, H, R]:
    the page in each place, or -1; the maps are inverse. fetched int32 [S, H]: pages that steps copied from the host.
    """

    keys: Tensor
    values: Tensor
    place_of: Tensor
    page_in: Tensor
    fetched: Tensor


class Pages(NamedTuple):
    """A reading: at most so many pages of each head, those whose digests promise the most attention.

    digests [S, H, P, 2, D]: of each page's keys, minus their center if they have one, written with the last entry of a
    page. pins float32 [S, H, P]: infinite for pinned pages, else -inf. counts int32 [S, 3]: pages that a step reads;
    how many of them are the first; how many the newest, the open one among them. residents: None if all pages are where
    steps read them.
    """

    digests: Tensor
    pins: Tensor
    counts: Tensor
    residents: Residents | None = None


class Ragged(NamedTuple):
    """A reading: heads have different numbers of entries, in planes [S, 1, E, ...] that all heads of all layers divide.

    places int32 [S, H, 2]: the first entry of a head, and how many more entries than `live` it has. They are before the
    ring, so that the head's new token goes that much further than `entry`, too.
    """

    places: Tensor


class Slots(NamedTuple):
    """The slots of one layer. All but centers, pins, counts and places change in place.

    planes: the tensors of the keys' plane [S, H, C, ...], then those of the values', which latents do not have; see
    `Encoding.parts`. centers: float32 [S, H, (1 + E) D], what is subtracted from a slot's keys, and its first E keys
    minus that, or NO_KEY; None if the encoding has none. reading: None if a step reads all live entries. queries
    [S, N + 1, H, G, D]: the last queries of each slot, see `keep_queries`; None if nothing watches the slots.
    """

    encoding: PlaneFormat
    planes: tuple[Tensor, ...]
    centers: Tensor | None = None
    reading: Pages | Ragged | None = None
    queries: Tensor | None = None

    @property
    def places(self) -> Tensor | None:
        """The places of ragged heads: an argument of the operator."""
        return self.reading.places if isinstance(self.reading, Ragged) else None

    @property
    def arguments(self) -> tuple[list[Tensor], Tensor | None, Tensor | None, int, int]:
        """The tensors in one list, centers, places, and how many tensors are of pages and of residents."""
        paged = self.reading if isinstance(self.reading, Pages) else None
        pages, residents = (paged[:3], paged.residents or ()) if paged else ((), ())
        return [*self.planes, *pages, *residents], self.centers, self.places, len(pages), len(residents)


_LEAVES = Tensor, frozenset
"""A tensor, or in the form of slots those of its dimensions that differ between engines."""
_DYNAMIC: Mapping[str, tuple[int, ...]] = {
    "centers": (0,),
    "counts": (0,),
    "fetched": (0,),
    "places": (0,),
    "queries": (0, 1),
}
_SLOTS_AND_ENTRIES = 0, 2
T = TypeVar("T")


def form(slots: T, dynamic: tuple[int, ...] = _SLOTS_AND_ENTRIES) -> T:
    """Return slots, a NamedTuple, with the dynamic dimensions of each tensor in its place: what graphs are made for."""
    if isinstance(slots, tuple):
        names = getattr(slots, "_fields", ("",) * len(slots))
        return _like(slots, [form(part, _DYNAMIC.get(name, dynamic)) for name, part in zip(names, slots, strict=True)])
    return cast(T, frozenset(dynamic)) if isinstance(slots, Tensor) else slots


def mapped(slots: T, function: Callable[[Tensor], Tensor]) -> T:
    """Return slots with a function of each tensor in its place."""
    if isinstance(slots, tuple):
        return _like(slots, [mapped(part, function) for part in slots])
    return cast(T, function(slots)) if isinstance(slots, Tensor) else slots


def flat(node: Any) -> tuple[Any, ...]:
    """Return the leaves of slots, or of their form, in the order in which graphs take them as arguments."""
    if isinstance(node, tuple):
        return tuple(leaf for part in node for leaf in flat(part))
    return (node,) if isinstance(node, _LEAVES) else ()


def filled(form: T, tensors: Iterable[Tensor]) -> T:
    """Invert `flat`: return slots of this form with these tensors."""
    remaining = iter(tensors)
    if isinstance(form, tuple):
        return _like(form, [filled(part, remaining) for part in form])
    return cast(T, next(remaining)) if isinstance(form, _LEAVES) else form


def _like(node: T, parts: Sequence[Any]) -> T:
    make: Any = type(node)
    return cast(T, make(*parts) if hasattr(node, "_fields") else tuple(parts))
