"""Random steps of slots whose pages are recalled, a simulation of their places with lists, and what must always hold.

The same entries are in a slot of `decode_attend_pages`, whose results a step must have bit for bit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ringkv.base.cache_spec import FETCH_COUNTS
from ringkv.kernels import decode_attend_pages
from ringkv.kernels.decode_attend_pages import EVERY_PAGE, digest
from tests.kernels.interpreted import SCALE

SLOTS, HEADS, GROUPS, PAGE = 3, 2, 2, 16
Attend = Callable[[list[Any]], tuple[tuple[Tensor, Tensor], list[Tensor]]]
"""Takes the arguments of an operator but the scale. Returns its result, and the tensors from its fourth one on."""
Prefetch = Callable[[list[Any]], list[Tensor]]
"""Takes the arguments of `prefetch_recall` but the scale. Returns the tensors from its second one on."""
Promise = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes q, digests, pins, counts, slot, live. Returns the selected pages and all shares, bool and float32 [B, H, P]."""


def promised(
    q: Tensor, digests: Tensor, pins: Tensor, counts: Tensor, slot: Tensor, live: Tensor
) -> tuple[Tensor, Tensor]:
    """A `Promise` by the torch reference."""
    pins, counts = pins[slot.long()], counts[slot.long()]
    scores = decode_attend_pages.scores(q, digests[slot.long()]) * SCALE
    share = decode_attend_pages.priority(scores, pins, counts, live, PAGE)
    return decode_attend_pages.selected(scores, pins, counts, live, PAGE), share


@dataclass
class Slots:
    """host: keys and values [S, H, C, D], digests, pins and counts. residents: the tensors of `Residents`.

    whole: keys, values and digests with all pages. live: entries of each slot. in_place: by slot and head the page in
    each place; None if it is empty. fetched: by slot and head, as `Residents` has it. prefetched: prefetched pages.
    """

    host: list[Tensor]
    residents: list[Tensor]
    whole: list[Tensor]
    live: list[int]
    in_place: dict[tuple[int, int], list[int | None]]
    fetched: dict[tuple[int, int], list[int]]
    prefetched: dict[tuple[int, int], set[int]]
    recalls: int = 0  # of all requests
    hits: int = 0

    @classmethod
    def new(cls, pages: int, places: int, width: int, dtype: torch.dtype) -> "Slots":
        planes = [torch.full((SLOTS, HEADS, pages * PAGE, width), float("nan"), dtype=dtype) for _ in range(2)]
        digests = torch.zeros(SLOTS, HEADS, pages, 2, width, dtype=dtype)
        device = [torch.zeros(SLOTS, HEADS, places * PAGE, width, dtype=dtype) for _ in range(2)]
        maps = [torch.full((SLOTS, HEADS, count), -1, dtype=torch.int32) for count in (pages, places)]
        counts = [torch.zeros(SLOTS, HEADS, count, dtype=torch.int32) for count in (places, FETCH_COUNTS)]
        heads = list(product(range(SLOTS), range(HEADS)))
        return cls(
            [*planes, digests, torch.zeros(SLOTS, HEADS, pages), torch.zeros(SLOTS, 5, dtype=torch.int32)],
            [*device, *maps, *counts],
            [one.nan_to_num(7.0) for one in (*planes, digests)],
            [0] * SLOTS,
            {one: [None] * places for one in heads},
            {one: [0] * FETCH_COUNTS for one in heads},
            {one: set() for one in heads},
        )

    @property
    def pages(self) -> int:
        return self.host[2].shape[2]

    def enter(self, slot: int, live: int, counts: tuple[int, ...]) -> None:
        """Give a slot to a request with so many entries, none of which are on the device."""
        keys, values, digests, pins, known = self.host
        for plane, other in zip((keys, values), self.whole, strict=False):
            plane[slot] = float("nan")
            plane[slot, :, :live] = torch.randn(HEADS, live, plane.shape[-1]).to(plane.dtype)
            other[slot] = plane[slot].nan_to_num(7.0)
        whole = live // PAGE
        digests[slot, :, :whole] = digest(keys[slot, :, : whole * PAGE].unflatten(1, (whole, PAGE)), counts[3] > 0)
        self.whole[2][slot], known[slot] = digests[slot], torch.tensor(counts).int()
        pins[slot] = float("-inf")
        _, leading, newest, *_ = counts
        if (stop := -(-live // PAGE) - newest) > leading and counts[0] < EVERY_PAGE:
            pinned = torch.randint(leading, stop, (HEADS,))
            pins[slot, range(HEADS), pinned[:1].expand(HEADS) if counts[4] else pinned] = float("inf")
        for one in self.residents[2:4]:
            one[slot] = -1
        for one in self.residents[4:]:
            one[slot] = 0
        self.live[slot] = live
        for head in range(HEADS):
            self.in_place[slot, head] = [None] * self.residents[3].shape[2]
            self.fetched[slot, head], self.prefetched[slot, head] = [0] * FETCH_COUNTS, set()

    def step(
        self,
        rows: list[int],
        running: set[int],
        recall: Attend,
        whole: Attend,
        prefetch: Prefetch,
        promised: Promise = promised,
    ) -> None:
        """Run a step for slots of which only some are running, and compare everything.

        Half of the steps are prefetched before, for other queries.

        `promised` rounds as `recall` does: pages that each dominate a head have shares that only rounding orders.
        """
        q, k, v, *numbers = self.tokens(rows, running)
        slot, _, live = numbers
        if bool(torch.randint(2, ())):
            predicted = (q.float() + 2 * torch.randn(q.shape)).to(q.dtype)
            selection = promised(predicted, self.whole[2], *self.host[3:5], slot, live)
            after = prefetch([predicted, *self.host, *self.residents, slot, live])
            self.host, self.residents = after[:5], after[5:11]
            self._simulate(rows, running, *selection, is_prefetch=True)
        seen, share = promised(q, self.whole[2], *self.host[3:5], slot, live)
        known = [*self.whole, *self.host[3:5]]
        want, after = whole([q, k, v, *known, *numbers])
        self.whole = after[:3]
        found, after = recall([q, k, v, *self.host, *self.residents, *numbers])
        self.host, self.residents = after[:5], after[5:11]
        for one, other in zip(found, want, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(self.host[2], self.whole[2])
        self._simulate(rows, running, seen, share)
        for one in running:
            self.check(one)

    def check(self, slot: int) -> None:
        """Compare the maps with the simulation, and all copies with what was written."""
        *planes, place_of, page_in, prefetched, fetched = self.residents
        assert not prefetched[slot].any()
        for head in range(HEADS):
            held, places = self.in_place[slot, head], place_of[slot, head].tolist()
            assert page_in[slot, head].tolist() == [-1 if page is None else page for page in held]
            assert [page for page, place in enumerate(places) if place >= 0] == sorted(p for p in held if p is not None)
            assert all(page is None or places[page] == place for place, page in enumerate(held))
            assert fetched[slot, head].tolist() == self.fetched[slot, head]
            for plane, host, whole in zip(planes, self.host, self.whole, strict=False):
                written = whole[slot, head, : self.live[slot]]
                assert torch.equal(host[slot, head, : self.live[slot]], written)
                for place, page in enumerate(held):
                    if page is not None:
                        own = written[page * PAGE : (page + 1) * PAGE]
                        assert torch.equal(plane[slot, head, place * PAGE :][: len(own)], own)

    def tokens(self, rows: list[int], running: set[int]) -> list[Tensor]:
        """Return q, k, v, slot, entry, live of a step, in which every running slot takes a token."""
        width, dtype, count = self.host[0].shape[-1], self.host[0].dtype, len(rows)
        for slot in running:
            self.live[slot] += 1
        vectors = [(4 * torch.randn(count, HEADS, GROUPS, width)), *(torch.randn(count, HEADS, width) for _ in "kv")]
        live = torch.tensor([self.live[slot] if slot in running else 0 for slot in rows]).int()
        return [*(one.to(dtype) for one in vectors), torch.tensor(rows).int(), (live - 1).clamp(min=0), live]

    def _simulate(
        self, rows: list[int], running: set[int], seen: Tensor, shares: Tensor, is_prefetch: bool = False
    ) -> None:
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
            moved = {page for page in wanted if page * PAGE + 1 < live}
            hits = 0 if is_prefetch else len(self.prefetched[slot, head] & {*read})
            self.prefetched[slot, head] = moved if is_prefetch else set()
            self.fetched[slot, head][int(is_prefetch)] += len(moved)
            self.fetched[slot, head][2] += hits
            self.recalls, self.hits = self.recalls + len(moved), self.hits + hits
            total = -(-live // PAGE)
            _, leading, newest, *_ = self.host[4][slot].tolist()
            assert {*range(min(leading, total)), *range(max(0, total - newest), total)} <= {*held}


def random_steps(slots: Slots, count: int, most: int, seed: int) -> Iterator[tuple[list[int], set[int]]]:
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
                is_short, places = below(4) == 0, slots.residents[3].shape[2]
                counts = (EVERY_PAGE, 0, 1, 1, 0) if is_short else (most, below(2), 1 + below(2), below(2), below(2))
                slots.enter(slot, 1 + below((places - 2 if is_short else slots.pages - 1) * PAGE), counts)
                running.add(slot)
        full = {slot for slot in running if slots.live[slot] >= slots.residents[3].shape[2] * PAGE}
        running -= {slot for slot in full if slots.host[4][slot, 0] == EVERY_PAGE}
        yield torch.randperm(SLOTS, generator=generator).tolist(), {slot for slot in running if below(5)}
