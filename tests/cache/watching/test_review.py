"""Reviews of a watched slot, compared with lists of entries and attention by plain loops."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import HISTORY, CacheSpec, LayerGroup, SlotFormat
from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.allocate import allocate_plain, allocate_slots
from ringkv.cache.compress.vote_reduction import VoteReduction
from ringkv.cache.filling import Kept
from ringkv.cache.layouts import layouts
from ringkv.cache.steps import finished
from ringkv.cache.watching.review import Leaving, review
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.keep_queries import keep_queries
from ringkv.kernels.slots import Rows, Slots

CAPACITY, REVIEW, RECENT, SINKS, HEADS, GROUPS, WIDTH = 24, 4, 6, 2, 2, 3, 8
LEADS = 2, 1, 0  # how many tokens before the slot is due each layer is scored
LAYERS = len(LEADS)
GROUP = LayerGroup(tuple(range(LAYERS)), CacheSpec.grouped(HEADS, WIDTH), GROUPS, slots=SlotFormat(queries=REVIEW))
KV = KVChoice("scissorhands", sinks=SINKS, recent=RECENT, review=REVIEW, protect=((7, 9),))


@dataclass
class Entry:
    """What a plain cache knows of a token of one layer and head."""

    position: int
    key: list[float]
    value: list[float]
    high: list[int] = field(default_factory=list)  # positions of queries that gave it at least 1/t


class Slot:
    """A slot of a body that is fed random tokens, and the same as lists."""

    def __init__(
        self, choice: KVChoice, prompt: int, seed: int, kept_queries: int = REVIEW, leads: Sequence[int] = LEADS
    ) -> None:
        self.choice, self.random, self.seen = choice, torch.Generator().manual_seed(seed), prompt
        self.prompt, self.recent, self.leads, self.leaving = prompt, int(choice.recent), leads, Leaving()
        group = GROUP._replace(slots=SlotFormat(queries=kept_queries))
        self.layout: Layout = layouts(choice, prompt, CAPACITY, [group])[0]
        self.body = allocate_slots(group, 3, CAPACITY, torch.zeros)
        staged = allocate_plain(GROUP, 1, prompt, lambda *shape, **how: self.noise(*shape[0]))
        live = self.layout.live(prompt)
        index = torch.stack([self.some(prompt, live) for _ in range(LAYERS * HEADS)]).view(LAYERS, HEADS, live)
        finished(self.body.take(1, Kept(staged.planes, 0, index)))
        self.body.note(1, index)
        self.queries: dict[int, Tensor] = {}
        self.gone: dict[tuple[int, int], set[int]] = {}  # positions that were chosen to go
        self.heads = {
            (layer, head): [
                Entry(at, *(plane[layer, 0, head, at].tolist() for plane in staged.planes))
                for at in index[layer, head].tolist()
            ]
            for layer in range(LAYERS)
            for head in range(HEADS)
        }

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def some(self, prompt: int, live: int) -> Tensor:
        """Return sorted tokens of a prompt: its sinks, protected and recent ones, and others at random."""
        fixed = {*range(SINKS), 7, 8, *range(max(0, prompt - self.recent), prompt)} & set(range(prompt))
        others = [at for at in torch.randperm(prompt, generator=self.random).tolist() if at not in fixed]
        return torch.tensor(sorted([*sorted(fixed), *others[: live - len(fixed)]]))

    def feed(self) -> None:
        """Feed one token, as a step would."""
        entry = self.layout.entry(self.seen)
        key, value = self.noise(LAYERS, HEADS, WIDTH), self.noise(LAYERS, HEADS, WIDTH)
        q = self.noise(LAYERS, HEADS, GROUPS, WIDTH)
        numbers = [torch.tensor([number], dtype=torch.int32) for number in (1, entry, entry + 1)]
        for layer in range(LAYERS):
            keep_queries(2 * q[layer][None], self.body.slots.queries[layer], *numbers)
        for plane, new in zip(self.body.planes, (key, value), strict=True):
            plane[:, 1, :, entry] = new
        for (layer, head), entries in self.heads.items():
            entries.append(Entry(self.seen, key[layer, head].tolist(), value[layer, head].tolist()))
        self.queries[self.seen] = 2 * q
        self.seen += 1

    def step(self) -> None:
        """Review what is to be reviewed, and feed one token; in the body alone."""
        review(self.body, 1, self.layout, self.seen, self.choice, self.leaving, VoteReduction())
        self.feed()

    def has_turn(self, layer: int) -> bool:
        """Whether so many free entries are left that a whole number of reviews fits behind the layer's lead."""
        free = CAPACITY - len(self.heads[layer, 0]) - self.leads[layer]
        return self.seen > self.prompt and free % self.choice.review == 0

    def review(self, score: Any) -> None:
        """Review the body and the lists, and compare."""
        review(self.body, 1, self.layout, self.seen, self.choice, self.leaving, VoteReduction())
        scored = [(layer, head) for layer, head in self.heads if self.has_turn(layer)]
        for layer, head in scored:
            self.observe(layer, head)
            entries, lead = self.heads[layer, head], self.leads[layer]
            if len(entries) + lead == CAPACITY:
                self.gone[layer, head] = self.lowest(entries, score, self.seen + lead)
        if len(self.heads[0, 0]) == CAPACITY:
            for at, entries in self.heads.items():
                self.heads[at] = [one for one in entries if one.position not in self.gone[at]]
            assert not self.leaving
            self.compare()
        for layer, head in scored:
            self.compare_noted(layer, head, len(self.heads[layer, head]))

    def observe(self, layer: int, head: int) -> None:
        entries = self.heads[layer, head]
        newest = range(max(self.prompt, self.seen - self.choice.review), self.seen)
        for (query, position), weight in self.attention(layer, head, entries, newest).items():
            if weight >= 1 / (query + 1):
                next(one for one in entries if one.position == position).high.append(query)

    def attention(self, layer: int, head: int, entries: list[Entry], queries: range) -> dict[tuple[int, int], float]:
        """Return the mean weight over query heads, by position of the query and of the key."""
        found: dict[tuple[int, int], float] = {}
        for query in queries:
            seen = [one for one in entries if one.position <= query]
            for group in range(GROUPS):
                q = self.queries[query][layer, head, group].tolist()
                raw = [math.exp(sum(map(math.prod, zip(q, one.key, strict=True))) / math.sqrt(WIDTH)) for one in seen]
                for one, weight in zip(seen, raw, strict=True):
                    at = query, one.position
                    found[at] = found.get(at, 0.0) + weight / sum(raw) / GROUPS
        return found

    def lowest(self, entries: list[Entry], score: Any, due: int) -> set[int]:
        """Return the positions of the lowest entries that may go after `due` tokens; of equal ones the last."""
        may_go = [
            (score(one), -one.position)
            for one in entries
            if SINKS <= one.position < due - self.recent and one.position not in (7, 8)
        ]
        return {-position for _, position in sorted(may_go)[: self.choice.review]}

    def run(self, tokens: int, score: Any) -> None:
        for _ in range(tokens):
            self.review(score)
            self.feed()

    def compare(self) -> None:
        for (layer, head), entries in self.heads.items():
            at = layer, 1, head, slice(len(entries))
            assert self.body.planes[0][at].tolist() == [one.key for one in entries]
            assert self.body.planes[1][at].tolist() == [one.value for one in entries]
            self.compare_noted(layer, head, len(entries) - self.leads[layer])  # the others come with its next turn

    def compare_noted(self, layer: int, head: int, count: int) -> None:
        positions, counts = (one[layer, 1, head, :count] for one in self.body.noted)
        entries = self.heads[layer, head][:count]
        assert positions.tolist() == [one.position for one in entries]
        if self.has_turn(layer):
            assert counts.sum(-1).tolist() == [self.high(one) for one in entries]

    def noted(self, layer: int) -> list[list[int]]:
        """Return the positions that a layer's heads kept, without those that came after its turn."""
        return self.body.noted.positions[layer, 1, :, : CAPACITY - self.choice.review - self.leads[layer]].tolist()

    @property
    def first(self) -> int:
        """The first position whose query is in the history."""
        return max(self.prompt, self.seen - HISTORY * self.choice.review)

    def high(self, one: Entry) -> int:
        return sum(query >= self.first for query in one.high)

    def score(self, one: Entry) -> int:
        """Return minus the number of queries of the history that gave an entry a low weight."""
        saw = sum(query >= one.position for query in range(self.first, self.seen))
        return self.high(one) - saw


@pytest.mark.parametrize("prompt", [9, 60])
@pytest.mark.parametrize(
    ("changes", "kept_queries", "leads"),
    [
        ({"recent": 1}, 4, (1, 0, 0)),
        ({"review": 2}, 4, (1, 0, 0)),
        ({"review": 3}, 4, LEADS),
        ({"review": 5}, 9, LEADS),
    ],
)
def test_the_recent_tokens_and_the_review_limit_how_early_a_layer_is_scored(
    prompt: int, changes: dict[str, int], kept_queries: int, leads: tuple[int, ...]
) -> None:
    """A slot may also keep more queries than a request's review has."""
    slot = Slot(replace(KV, **changes), prompt, prompt, kept_queries, leads)
    slot.run(50, slot.score)


@pytest.mark.parametrize("prompt", [9, 18, 20, 60])
def test_the_entries_with_the_most_low_weights_in_the_history_are_evicted(prompt: int) -> None:
    slot = Slot(KV, prompt, prompt)
    slot.run(HISTORY * REVIEW + 40, slot.score)


def test_a_span_that_is_longer_than_the_prompt_protects_no_generated_token() -> None:
    slot = Slot(replace(KV, protect=((7, 9), (15, 200))), 18, 4)
    for _ in range(31):  # the last one comes after a review
        slot.step()
    for layer, lead in enumerate(LEADS):
        newest = range(slot.seen - 1 - RECENT, slot.seen - 1 - lead)
        assert all({0, 1, 7, 8, 15, 16, 17, *newest} <= set(held) for held in slot.noted(layer))


def test_rows_of_no_slot_change_no_query_that_is_read() -> None:
    queries = torch.zeros(2, REVIEW + 1, HEADS, GROUPS, WIDTH)
    q, order = torch.randn(3, HEADS, GROUPS, WIDTH), random.Random(1)
    for _ in range(20):
        rows = order.sample(range(3), 3)
        slot, entry, live = (torch.tensor([values[at] for at in rows]) for values in ([0, 0, 0], [0, 8, 0], [0, 9, 0]))
        keep_queries(q[rows], queries, slot.int(), entry.int(), live.int())
        assert torch.equal(queries[0, 8 % REVIEW], q[1])
        assert not queries[0, 1:REVIEW].any()


def test_a_layer_that_reads_the_cache_of_another_leaves_the_queries_of_that_one() -> None:
    plane, queries = torch.zeros(1, HEADS, CAPACITY, WIDTH), torch.zeros(1, REVIEW + 1, HEADS, GROUPS, WIDTH)
    slots, rows = Slots("plain", (plane, plane.clone()), queries=queries), Rows(*torch.tensor([[0], [5], [6]]).int())
    writer, reader = torch.randn(2, 1, HEADS, GROUPS, WIDTH)
    decode_attend(writer, *torch.randn(2, 1, HEADS, WIDTH), slots, rows, 1.0)
    decode_attend(reader, None, None, slots, rows, 1.0)
    assert torch.equal(queries[0, 5 % REVIEW], writer[0])
