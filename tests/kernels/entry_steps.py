"""Random steps over slots of each encoding and reading, on any device; for tests of the Triton kernels."""

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.page_counts import EVERY_PAGE
from ringkv.kernels.encoding import ENCODINGS, NO_KEY
from ringkv.kernels.pages import digest
from ringkv.kernels.slots import Pages, Ragged, Rows, Slots, mapped

FORMATS: tuple[PlaneFormat, ...] = ("plain", "int8", "int4")
READINGS = "every", "ragged", "pages"
EACH = list(product(FORMATS, READINGS))
HEADS, PAGE, EXACT = 2, 16, 3
READ, LEADING, NEWEST = 5, 1, 2  # pages of a step
PINNED = 0.2  # share of the pages


class Inputs(NamedTuple):
    """The arguments of decode attention but the scale."""

    q: Tensor
    k: Tensor | None
    v: Tensor | None
    slots: Slots
    rows: Rows


def step(
    encoding: PlaneFormat,
    reading: str,
    live: list[int],
    dtype: torch.dtype = torch.float32,
    groups: int = 3,
    width: int = 32,
    page: int = PAGE,
) -> Inputs:
    """Return a step of a row for each live length, in slots in reverse order, and a slot more, which is unused.

    Vectors differ in size. The first row reads all of its pages.
    """
    torch.manual_seed(groups * width)
    count, capacity = len(live), -(-max(live) // page) * page
    vectors = [torch.randn(count, HEADS, *shape, width).to(dtype) for shape in ((groups,), (), ())]
    shape = (1, HEADS * capacity + count) if reading == "ragged" else (HEADS, capacity)
    sizes = 0.1 + torch.rand(shape[1], 1)
    stored = [(torch.randn(count + 1, *shape, width) * sizes).to(dtype) for _ in "kv"]
    planes = [part for vectors_of_plane in stored for part in ENCODINGS[encoding].encode(vectors_of_plane)]
    slots = Slots(encoding, tuple(planes), _centers(count + 1, width) if ENCODINGS[encoding].has_centers else None)
    if reading == "ragged":
        slots = slots._replace(reading=Ragged(_places(live)))
    if reading == "pages":
        parts = len(ENCODINGS[encoding].parts)
        keys = ENCODINGS[encoding].decode(*planes[:parts]).unflatten(2, (-1, page))
        slots = slots._replace(reading=_pages(keys, dtype))
    entry = [_entry(reading, n) if row % 2 == 0 else max(0, n - 1) for row, n in enumerate(live)]
    rows = Rows(*(torch.tensor(column, dtype=torch.int32) for column in ([*range(count, 0, -1)], entry, live)))
    return Inputs(*vectors, slots, rows)


def _entry(reading: str, live: int) -> int:
    """Return the entry of a new token in a ring. Pages have their newest token last."""
    return {"every": live // 3, "ragged": max(0, live - 1 - live // 4)}.get(reading, max(0, live - 1))


def _centers(slots: int, width: int) -> Tensor:
    first = 3 * torch.randn(slots, HEADS, EXACT, width)
    first[:, ::2, 1] = NO_KEY
    return torch.cat((torch.randn(slots, HEADS, width), first.flatten(2)), -1)


def _places(live: list[int]) -> Tensor:
    """Return places of heads: the first has fewer entries than the second, and a part of the slot is before it."""
    more = torch.tensor([[-(n // 3), n // 3] for n in [0, *reversed(live)]])
    room = torch.tensor([0, *reversed(live)])[:, None] + more
    first = room.cumsum(1) - room + torch.arange(len(live) + 1)[:, None]
    return torch.stack((first, more), -1).int()


def _pages(keys: Tensor, dtype: torch.dtype) -> Pages:
    """Return a reading of keys [S, H, P, page, D]."""
    slots, count = keys.shape[0], keys.shape[2]
    counts = torch.tensor([[READ, LEADING, NEWEST]] * slots, dtype=torch.int32)
    counts[-1, 0] = EVERY_PAGE
    pins = torch.where(torch.rand(slots, HEADS, count) < PINNED, float("inf"), float("-inf"))
    return Pages(digest(keys).to(dtype), pins, counts)


def copied(inputs: Inputs, device: str | torch.device = "cpu") -> Inputs:
    """Return copies of all tensors on a device."""
    return mapped(inputs, lambda tensor: tensor.to(device, copy=True))
