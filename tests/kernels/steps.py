"""Decode steps over slots of each encoding and reading, and loops in float64 that say what a step returns.

B rows of a step, S slots, H key-value heads, G query heads each, D elements of a vector.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.kernels import int8
from ringkv.kernels.attended import Attended
from ringkv.kernels.encoding import ENCODINGS, NO_KEY
from ringkv.kernels.pages import digest
from ringkv.kernels.slots import Pages, Ragged, Rows, Slots, mapped

Attend = Callable[..., tuple[Tensor, Tensor]]
FORMATS: tuple[PlaneFormat, ...] = ("plain", "int8", "int4")
READINGS = "every", "ragged", "pages"
SLOTS, HEADS, ENTRIES, PAGE, EXACT = 5, 2, 560, 16, 4
ROWS = Rows(*(torch.tensor(column, dtype=torch.int32) for column in ([3, 0, 2, 4], [529, 0, 150, 1], [530, 0, 300, 2])))
"""Entries of three blocks, none, of two blocks, and fewer than exact keys. No row names slot 1."""
LIMIT, LEADING, NEWEST = 12, 2, 3
_MORE = 17  # entries that the second of ragged heads has less, and the first one more


class Head(NamedTuple):
    """What a head of a row reads: indices of entries, and their keys minus the center and values, float64 [n, D]."""

    entries: list[int]
    keys: Tensor
    values: Tensor


class Step:
    """A step over random slots, some of whose first keys are exact."""

    def __init__(
        self,
        encoding: PlaneFormat = "plain",
        reading: str = "every",
        dtype: torch.dtype = torch.float32,
        width: int = 64,
        groups: int = 3,
    ) -> None:
        torch.manual_seed(width + groups)
        self.scale = width**-0.5
        self.q = torch.randn(len(ROWS.slot), HEADS, groups, width).to(dtype)
        self.k, self.v = (torch.randn(len(ROWS.slot), HEADS, width).to(dtype) for _ in "kv")
        heads, entries = (1, HEADS * ENTRIES) if reading == "ragged" else (HEADS, ENTRIES)
        vectors = (torch.randn(2, SLOTS, heads, entries, width) * (0.1 + torch.rand(entries, 1))).to(dtype)
        planes = [part for plane in vectors for part in ENCODINGS[encoding].encode(plane)]
        self.centers = self._centers(width) if ENCODINGS[encoding].has_centers else None
        self.slots = Slots(encoding, tuple(planes), self.centers)
        if reading == "ragged":
            self.slots = self.slots._replace(reading=Ragged(self._places()))
        if reading == "pages":
            self.slots = self.slots._replace(reading=self._pages(dtype))
        self.after = self.slots

    @staticmethod
    def _centers(width: int) -> Tensor:
        first = 3 * torch.randn(SLOTS, HEADS, EXACT, width)
        first[:, :, 1::2] = NO_KEY
        return torch.cat((torch.randn(SLOTS, HEADS, width), first.flatten(2)), -1)

    @staticmethod
    def _places() -> Tensor:
        places = torch.tensor([[0, _MORE], [ENTRIES, -_MORE]]).repeat(SLOTS, 1, 1)
        places[4, :, 1] = 0  # of a slot with two entries
        return places.int()

    def _pages(self, dtype: torch.dtype) -> Pages:
        keys, _ = self._decoded(self.slots)
        pins = torch.where(torch.rand(SLOTS, HEADS, ENTRIES // PAGE) < 0.05, float("inf"), float("-inf"))
        counts = torch.tensor([[LIMIT, LEADING, NEWEST]], dtype=torch.int32).repeat(SLOTS, 1)
        return Pages(digest(keys.unflatten(2, (-1, PAGE))).to(dtype), pins, counts)

    def limited(self, limit: int) -> None:
        """Have slots read so many pages."""
        assert isinstance(self.slots.reading, Pages)
        counts = self.slots.reading.counts.clone()
        counts[:, 0] = limit
        self.slots = self.slots._replace(reading=self.slots.reading._replace(counts=counts))

    def run(self, attend: Attend, is_written: bool = True) -> Attended:
        """Run the step on a copy of the slots, which `after` is then."""
        self.after = mapped(self.slots, Tensor.clone)
        new = (self.k, self.v) if is_written else (None, None)
        return Attended(*attend(self.q, *new, self.after, ROWS, self.scale))

    def row(self, attend: Attend, row: int) -> Attended:
        """Run the step for one row."""
        vectors = (vector[row : row + 1] for vector in (self.q, self.k, self.v))
        slots = mapped(self.slots, Tensor.clone)
        rows = Rows(*(column[row : row + 1] for column in ROWS))
        return Attended(*attend(*vectors, slots, rows, self.scale))

    def place(self, row: int, head: int) -> tuple[int, int, int]:
        """Return the head of planes in which a head's entries are, its first entry, and how many it has."""
        live, slot = int(ROWS.live[row]), int(ROWS.slot[row])
        if not isinstance(self.slots.reading, Ragged):
            return head, 0, live
        first, more = self.slots.reading.places[slot, head].tolist()
        return 0, first, live + more

    def stored(self, row: int, head: int) -> Head:
        """Return all entries of a head after the step, with exact keys."""
        slot = int(ROWS.slot[row])
        plane, first, count = self.place(row, head)
        keys, values = (vectors[slot, plane, first : first + count].double() for vectors in self._decoded(self.after))
        for entry in self.exact(count):
            keys[entry] = self.first(slot, head)[entry]
        return Head(list(range(count)), keys, values)

    def exact(self, count: int) -> list[int]:
        """Return which of so many entries have exact keys."""
        return [] if self.centers is None else list(range(0, min(EXACT, count), 2))

    def first(self, slot: int, head: int) -> Tensor:
        assert self.centers is not None
        return self.centers[slot, head].view(1 + EXACT, -1)[1:].double()

    def center(self, row: int, head: int) -> Tensor:
        """Return float64 [D]: what keys lack."""
        width = self.q.shape[-1]
        if self.centers is None:
            return torch.zeros(width, dtype=torch.double)
        return self.centers[ROWS.slot[row], head, :width].double()

    def pages(self, row: int, head: int) -> list[int]:
        """Return the pages that a head reads."""
        reading, slot, live = self.after.reading, int(ROWS.slot[row]), int(ROWS.live[row])
        assert isinstance(reading, Pages)
        total, limit = math.ceil(live / PAGE), int(reading.counts[slot, 0])
        if total <= limit:
            return list(range(total))
        promised = promises(self.q[row, head], reading.digests[slot, head, : total - NEWEST])
        first = [-max(share, float(pin)) for share, pin in zip(promised, reading.pins[slot, head], strict=False)]
        between = sorted(range(LEADING, total - NEWEST), key=lambda page: (first[page], page))
        return sorted([*range(LEADING), *between[: limit - LEADING - NEWEST], *range(total - NEWEST, total)])

    def read(self, row: int, head: int) -> Head:
        """Return the entries that a head reads after the step."""
        stored = self.stored(row, head)
        if not isinstance(self.slots.reading, Pages):
            return stored
        count = len(stored.entries)
        entries = [i for page in self.pages(row, head) for i in range(page * PAGE, min(count, (page + 1) * PAGE))]
        return Head(entries, stored.keys[entries], stored.values[entries])

    def scores(self, row: int, head: int, read: Head, is_rounded: bool) -> Tensor:
        """Return float64 [G, n]. The C++ kernel rounds queries to bytes, but not for exact keys and the center."""
        q = self.q[row, head]
        rounded = int8.decode(*int8.encode(q)) if is_rounded and self.centers is not None else q
        scores = rounded.double() @ read.keys.T
        exact = [i for i, entry in enumerate(read.entries) if entry in self.exact(EXACT)]
        scores[:, exact] = q.double() @ read.keys[exact].T
        return self.scale * (scores + (q.double() @ self.center(row, head))[:, None])

    def by_hand(self, row: int, head: int, is_rounded: bool) -> tuple[Tensor, Tensor]:
        """Return the output [G, D] of a head and its log-sum-exp [G], in float64."""
        read = self.read(row, head)
        scores = self.scores(row, head, read, is_rounded)
        return scores.softmax(-1) @ read.values, scores.logsumexp(-1)

    @staticmethod
    def _decoded(slots: Slots) -> Sequence[Tensor]:
        encoding = ENCODINGS[slots.encoding]
        parts = len(encoding.parts)
        return [encoding.decode(*slots.planes[:parts]), encoding.decode(*slots.planes[parts:])]


def promises(q: Tensor, digests: Tensor) -> list[float]:
    """Return the largest share of attention that a query of q [G, D] may pay to each page of digests [P, 2, D]."""
    q, digests = q.double() / math.sqrt(q.shape[-1]), digests.double()
    bounds = [[float(torch.maximum(query * upper, query * lower).sum()) for upper, lower in digests] for query in q]
    return torch.tensor(bounds, dtype=torch.double).softmax(-1).amax(0).tolist()
