# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Readings in Triton: which entries of a head a step reads, and where in a plane they are.

B rows of a step, S slots, H key-value heads, P pages of a slot. A plane is a pointer and the strides of a slot and of a
head, in elements of which an entry has SIZE.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ringkv.kernels.gpu.step import Strided, strided
from ringkv.kernels.gpu.tiles import entries_per_split

SPREAD = tl.constexpr(4)  # a head with so many times the entries of a usual one has splits of the usual length


class Functions(NamedTuple):
    """What kernels need of a reading: Triton functions of its index.

    start: returns the pointer to entry 0 of a head. newest: returns the entry of the new token, of an entry that the
    layout gives it. split: returns how many entries a row's head reads, and how many of them each split. entry: returns
    the entries that are read as number i, which is below `stop`.
    """

    start: Any
    newest: Any
    split: Any
    entry: Any


class Reading(NamedTuple):
    """The arguments `index` and READ of kernels."""

    index: Any
    functions: Functions


@triton.jit
def start_of_head(index, plane, slot, head, SIZE: tl.constexpr):
    at, of_slot, of_head = plane
    return at + (slot * of_slot + head.to(tl.int64) * of_head)  # beyond 2**31 elements in a large cache


@triton.jit
def same_entry(index, slot, head, entry):
    return entry


@triton.jit
def split_of_live(index, row, slot, head, live, splits, BLOCK: tl.constexpr):
    return live, entries_per_split(live, splits, BLOCK)


@triton.jit
def in_order(index, row, head, i, stop):
    return i


EVERY = Reading(None, Functions(start_of_head, same_entry, split_of_live, in_order))


@triton.jit
def all_splits(index, row, slot, head, live, splits, BLOCK: tl.constexpr):
    """Return a length that all splits of a row with live entries have: those that read nothing were written too."""
    return tl.where(live > 0, splits, 0), 1


ALL_SPLITS = Reading(None, EVERY.functions._replace(split=all_splits))
"""What is merged of chunks."""


class HeadPlaces(NamedTuple):
    """The index of ragged heads. places: int32 [S, H, 2], see `kernels.slots.Ragged`, and the stride of a slot."""

    places: Tensor
    stride: int


@triton.jit
def start_of_place(index, plane, slot, head, SIZE: tl.constexpr):
    at, of_slot, _ = plane
    first = tl.load(index.places + slot * index.stride + head * 2)
    return at + (slot * of_slot + first.to(tl.int64) * SIZE)  # beyond 2**31 elements in a large cache


@triton.jit
def further_entry(index, slot, head, entry):
    return entry + tl.load(index.places + slot * index.stride + head * 2 + 1)


@triton.jit
def split_of_head(index, row, slot, head, live, splits, BLOCK: tl.constexpr):
    """Return what all heads have in each split, so that programs take equally long, unless a head needs too many.

    The last split of a head is half full on average: all heads then have splits / SPREAD splits on average.
    """
    more = tl.load(index.places + slot * index.stride + head * 2 + 1, mask=live > 0, other=0)
    length = live + more
    even = entries_per_split(2 * live, 2 * (splits // SPREAD) - 1, BLOCK)
    return length, tl.maximum(even, entries_per_split(length, splits, BLOCK))


def of_heads(places: Tensor) -> Reading:
    """Return the reading of heads with places int32 [S, H, 2]."""
    assert places.stride()[1:] == (2, 1)
    index = HeadPlaces(places, places.stride(0))
    return Reading(index, Functions(start_of_place, further_entry, split_of_head, in_order))


class Selection(NamedTuple):
    """The pages that `select_pages` selects.

    pages: int32 [B, H, P], those that each head reads, in order. lengths: int32 [B], their live entries. shares:
    float32 [B, H, P], of rows that do not read all of their pages; None if they are not needed.
    """

    pages: Tensor
    lengths: Tensor
    shares: Tensor | None


class PageList(NamedTuple):
    """The index of pages.

    page: entries of a page, a power of two. selected: int32 [B, H, P], with the strides of a row and of a head: where
    in the planes the pages are that a head reads, in order. lengths: int32 [B], their live entries. place_of: int32
    [S, H, P], with the strides of a slot and of a head: where in the planes each page is; None if they are in order.
    """

    page: tl.constexpr
    selected: Strided | None = None
    lengths: Tensor | None = None
    place_of: Strided | None = None


@triton.jit
def entry_in_place(index, slot, head, entry):
    if index.place_of is not None:
        at, of_slot, of_head = index.place_of
        place = tl.load(at + slot * of_slot + head * of_head + entry // index.page)
        entry = place * index.page + entry % index.page
    return entry


@triton.jit
def split_of_pages(index, row, slot, head, live, splits, BLOCK: tl.constexpr):
    length = tl.load(index.lengths + row)
    return length, entries_per_split(length, splits, BLOCK)


@triton.jit
def in_pages(index, row, head, i, stop):
    at, of_row, of_head = index.selected
    selected = at + row.to(tl.int64) * of_row + head * of_head
    return tl.load(selected + i // index.page, mask=i < stop, other=0) * index.page + i % index.page


def of_pages(page: int, selection: Selection | None = None, place_of: Tensor | None = None) -> Reading:
    """Return the reading of selected pages of so many entries; see `PageList`. None: only new tokens have a place."""
    lists = (None if pages is None else strided(pages, 2) for pages in (selection and selection.pages, place_of))
    selected, places = lists
    index = PageList(tl.constexpr(page), selected, selection and selection.lengths, places)
    return Reading(index, Functions(start_of_head, entry_in_place, split_of_pages, in_pages))
