"""Random steps of slots whose pages are recalled, a simulation of their places with lists, and what must always hold.

The same entries are in slots with all pages, whose results a step must have bit for bit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ringkv.base.page_counts import EVERY_PAGE
from ringkv.kernels import pages
from ringkv.kernels.pages import digest
from ringkv.kernels.slots import Pages, Residents, Rows, Slots
from tests.kernels.entry_steps import Inputs
from tests.kernels.interpreted import SCALE

SLOTS, HEADS, GROUPS, PAGE = 3, 2, 2, 16
Attend = Callable[[Inputs], tuple[tuple[Tensor, Tensor], Slots]]
"""Runs a step. Returns its result, and the slots afterwards."""
Promise = Callable[[Tensor, Pages, Rows], tuple[Tensor, Tensor]]
"""Returns which pages q reads and all of their shares, bool and float32 [B, H, P]."""


def promised(q: Tensor, reading: Pages, rows: Rows) -> tuple[Tensor, Tensor]:
    """A `Promise` by the torch reference."""
    scores = pages.scores(q, reading.digests[rows.slot.long()]) * SCALE
    return pages.selected(scores, reading, rows, PAGE), pages.priority(scores, reading, rows, PAGE)


@dataclass
class Recalled:
    """host: slots with residents. every: slots with the same entries that have all pages in place.

    live: entries of each slot. in_place: by slot and head the page in each place; None if it is empty. recalled: by
    slot and head.
    """

    host: Slots
    every: Slots
    live: list[int]
    in_place: dict[tuple[int, int], list[int | None]]
    recalled: dict[tuple[int, int], int]
    recalls: int = 0  # of all requests

    @classmethod
    def new(cls, count: int, places: int, width: int, dtype: torch.dtype) -> "Recalled":
        planes = tuple(torch.full((SLOTS, HEADS, count * PAGE, width), float("nan"), dtype=dtype) for _ in "kv")
        of_slots = Pages(
            torch.zeros(SLOTS, HEADS, count, 2, width, dtype=dtype),
            torch.zeros(SLOTS, HEADS, count),
            torch.zeros(SLOTS, 3, dtype=torch.int32),
        )
        device = [torch.zeros(SLOTS, HEADS, places * PAGE, width, dtype=dtype) for _ in "kv"]
        maps = [torch.full((SLOTS, HEADS, size), -1, dtype=torch.int32) for size in (count, places)]
        residents = Residents(*device, *maps, torch.zeros(SLOTS, HEADS, dtype=torch.int32))
        heads = list(product(range(SLOTS), range(HEADS)))
        return cls(
            Slots("plain", planes, reading=of_slots._replace(residents=residents)),
            Slots(
                "plain",
                tuple(plane.nan_to_num(7.0) for plane in planes),
                reading=of_slots._replace(digests=of_slots.digests.clone()),
            ),
            [0] * SLOTS,
            {head: [None] * places for head in heads},
            dict.fromkeys(heads, 0),
        )

    @property
    def reading(self) -> Pages:
        assert isinstance(self.host.reading, Pages)
        return self.host.reading

    @property
    def residents(self) -> Residents:
        assert self.reading.residents is not None
        return self.reading.residents

    @property
    def pages(self) -> int:
        return self.reading.digests.shape[2]

    @property
    def places(self) -> int:
        return self.residents.page_in.shape[2]

    def enter(self, slot: int, live: int, counts: tuple[int, int, int]) -> None:
        """Give a slot to a request with so many entries, none of which are on the device."""
        digests, pins, known, *_ = self.reading
        for plane, other in zip(self.host.planes, self.every.planes, strict=True):
            plane[slot] = float("nan")
            plane[slot, :, :live] = torch.randn(HEADS, live, plane.shape[-1]).to(plane.dtype)
            other[slot] = plane[slot].nan_to_num(7.0)
        full, keys = live // PAGE, self.host.planes[0]
        digests[slot, :, :full] = digest(keys[slot, :, : full * PAGE].unflatten(1, (full, PAGE)))
        assert isinstance(self.every.reading, Pages)
        self.every.reading.digests[slot] = digests[slot]
        pins[slot], (_, leading, newest) = float("-inf"), counts
        if (stop := -(-live // PAGE) - newest) > leading and counts[0] < EVERY_PAGE:
            pins[slot, range(HEADS), torch.randint(leading, stop, (HEADS,))] = float("inf")
        known[slot] = torch.tensor(counts).int()
        self.every = self.every._replace(reading=self.every.reading._replace(pins=pins, counts=known))
        self.residents.place_of[slot] = self.residents.page_in[slot] = -1
        self.residents.fetched[slot], self.live[slot] = 0, live
        for head in range(HEADS):
            self.in_place[slot, head], self.recalled[slot, head] = [None] * self.places, 0

    def step(
        self, rows: list[int], running: set[int], recall: Attend, every: Attend, promised: Promise = promised
    ) -> None:
        """Run a step for slots of which only some are running, and compare everything.

        `promised` rounds as `recall` does: pages that each dominate a head have shares that only rounding orders.
        """
        inputs = self.inputs(rows, running)
        seen, share = promised(inputs.q, self.reading, inputs.rows)
        want, self.every = every(inputs._replace(slots=self.every))
        found, self.host = recall(inputs)
        for ours, theirs in zip(found, want, strict=True):
            assert torch.equal(ours, theirs)
        assert isinstance(self.every.reading, Pages)
        assert torch.equal(self.reading.digests, self.every.reading.digests)
        self._simulate(rows, running, seen, share)
        for slot in running:
            self.check(slot)

    def check(self, slot: int) -> None:
        """Compare the maps with the simulation, and all copies with what was written."""
        keys, values, place_of, page_in, fetched = self.residents
        for head in range(HEADS):
            held, places = self.in_place[slot, head], place_of[slot, head].tolist()
            assert page_in[slot, head].tolist() == [-1 if page is None else page for page in held]
            assert [page for page, place in enumerate(places) if place >= 0] == sorted(p for p in held if p is not None)
            assert all(page is None or places[page] == place for place, page in enumerate(held))
            assert int(fetched[slot, head]) == self.recalled[slot, head]
            for plane, host, every in zip((keys, values), self.host.planes, self.every.planes, strict=True):
                written = every[slot, head, : self.live[slot]]
                assert torch.equal(host[slot, head, : self.live[slot]], written)
                for place, page in enumerate(held):
                    if page is not None:
                        entries = written[page * PAGE : (page + 1) * PAGE]
                        assert torch.equal(plane[slot, head, place * PAGE :][: len(entries)], entries)

    def inputs(self, rows: list[int], running: set[int]) -> Inputs:
        """Return a step, in which every running slot takes a token."""
        width, dtype, count = self.host.planes[0].shape[-1], self.host.planes[0].dtype, len(rows)
        for slot in running:
            self.live[slot] += 1
        q = 4 * torch.randn(count, HEADS, GROUPS, width)
        k, v = (torch.randn(count, HEADS, width).to(dtype) for _ in "kv")
        live = torch.tensor([self.live[slot] if slot in running else 0 for slot in rows]).int()
        return Inputs(q.to(dtype), k, v, self.host, Rows(torch.tensor(rows).int(), (live - 1).clamp(min=0), live))

    def _simulate(self, rows: list[int], running: set[int], seen: Tensor, shares: Tensor) -> None:
        for (row, slot), head in product(enumerate(rows), range(HEADS)):
            if slot not in running:
                continue
            read, share = seen[row, head].nonzero()[:, 0].tolist(), shares[row, head].tolist()
            held, live = self.in_place[slot, head], self.live[slot]
            wanted = [page for page in read if page not in held]
            ranks = [
                (-(2.0**200), 0, place) if p is None else (max(share[p], -1e200), p, place)
                for place, p in enumerate(held)
            ]
            others = sorted(rank for rank, page in zip(ranks, held, strict=True) if page not in read)
            for page, place in zip(wanted, sorted(place for *_, place in others[: len(wanted)]), strict=True):
                held[place] = page
            recalls = sum(page * PAGE + 1 < live for page in wanted)
            self.recalled[slot, head] += recalls
            self.recalls += recalls
            total = -(-live // PAGE)
            _, leading, newest = self.reading.counts[slot].tolist()
            assert {*range(min(leading, total)), *range(max(0, total - newest), total)} <= {*held}


def random_steps(slots: Recalled, count: int, most: int, seed: int) -> Iterator[tuple[list[int], set[int]]]:
    """Yield the rows and the running slots of steps. Requests come and go; a few read all of a short slot."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    running: set[int] = set()
    for step in range(count):
        for slot in range(SLOTS):
            if slots.live[slot] >= slots.pages * PAGE or (slot in running and below(60) == 0):
                running.discard(slot)
            if slot not in running and (step == 0 or below(6) == 0):
                is_short, places = below(4) == 0, slots.places
                counts = (EVERY_PAGE, 0, 1) if is_short else (most, below(2), 1 + below(2))
                slots.enter(slot, 1 + below((places - 2 if is_short else slots.pages - 1) * PAGE), counts)
                running.add(slot)
        full = {slot for slot in running if slots.live[slot] >= slots.places * PAGE}
        running -= {slot for slot in full if slots.reading.counts[slot, 0] == EVERY_PAGE}
        yield torch.randperm(SLOTS, generator=generator).tolist(), {slot for slot in running if below(5)}
