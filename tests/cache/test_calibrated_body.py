"""Reviews of a calibrated slot, compared with lists of entries and the paper's formula by plain loops."""

import math
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import CacheSpec, LayerGroup
from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.body import Body, Leaving
from ringkv.cache.calibrated_body import CalibratedBody
from ringkv.cache.layouts import layout, layouts
from ringkv.cache.slot_bodies import allocate_slots
from ringkv.cache.watching.evict import fixed
from ringkv.cache.watching.triattention import ExpectedQueries, score
from ringkv.models.layer import RopeConfig
from tests.cache.watching.test_triattention import GROUPS, HEADS, WIDTH, cached, expected, paper, rotary
from tests.fake_cuda import fake_cuda

CAPACITY, REVIEW, RECENT, SINKS = 24, 4, 6, 2
LEADS = 2, 1, 0  # how many tokens before the slot is due each layer is scored
LAYERS = len(LEADS)
GROUP = LayerGroup(tuple(range(LAYERS)), CacheSpec.grouped(HEADS, WIDTH), GROUPS, calibrated=True)
KV = KVChoice("triattention", sinks=SINKS, recent=RECENT, review=REVIEW, protect=((7, 9),))
ROPE = RopeConfig(500.0, width=8)


@dataclass(frozen=True)
class Entry:
    """A token of one layer and head: its position, and its key before rotation."""

    position: int
    key: Tensor


class Slot:
    """Row 1 of a body that is fed random tokens, and the same as lists."""

    def __init__(self, choice: KVChoice, prompt: int, seed: int) -> None:
        self.choice, self.random, self.seen = choice, torch.Generator().manual_seed(seed), prompt
        self.prompt, self.leaving = prompt, Leaving()
        self.gone: dict[tuple[int, int], list[int]] = {}  # positions that were chosen to go
        self.layout: Layout = layouts(choice, prompt, CAPACITY, [GROUP])[0]
        self.queries = [self.noise(4, HEADS, GROUPS, WIDTH) + 0.5 for _ in range(LAYERS)]
        body = allocate_slots(GROUP, 3, CAPACITY, torch.zeros)
        assert isinstance(body, CalibratedBody)
        self.body = body.expecting([expected(ROPE, queries) for queries in self.queries])
        plain, live = self.noise(LAYERS, HEADS, prompt, WIDTH), self.layout.live(prompt)
        staged = Body.allocate(GROUP._replace(calibrated=False), 1, prompt, torch.zeros)
        for layer in range(LAYERS):
            staged.planes[0][layer, 0] = cached(ROPE, plain[layer], torch.arange(prompt))
        index = torch.stack([self.some(prompt, live) for _ in range(LAYERS * HEADS)]).view(LAYERS, HEADS, live)
        self.body.take(1, staged, 0, index)
        self.body.note(1, index)
        self.heads = {
            (layer, head): [Entry(at, plain[layer, head, at]) for at in index[layer, head].tolist()]
            for layer in range(LAYERS)
            for head in range(HEADS)
        }

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def some(self, prompt: int, live: int) -> Tensor:
        """Return sorted tokens of a prompt: its sinks, protected and recent ones, and others at random."""
        fixed = {*range(SINKS), 7, 8, *range(max(0, prompt - RECENT), prompt)} & set(range(prompt))
        others = [at for at in torch.randperm(prompt, generator=self.random).tolist() if at not in fixed]
        return torch.tensor(sorted([*sorted(fixed), *others[: live - len(fixed)]]))

    def feed(self) -> None:
        """Feed one token, as a step would."""
        keys, entry = self.noise(LAYERS, HEADS, 1, WIDTH), self.layout.entry(self.seen)
        for layer in range(LAYERS):
            self.body.planes[0][layer, 1, :, entry] = cached(ROPE, keys[layer], torch.tensor([self.seen]))[:, 0]
        self.body.planes[1][:, 1, :, entry] = self.seen
        for (layer, head), entries in self.heads.items():
            entries.append(Entry(self.seen, keys[layer, head, 0]))
        self.seen += 1

    def step(self) -> None:
        """Review what is to be reviewed, and feed one token; in the body alone."""
        self.body.review(1, self.layout, self.seen, self.choice, self.leaving)
        self.feed()

    def has_turn(self, layer: int) -> bool:
        """Whether so many free entries are left that a whole number of reviews fits behind the layer's lead."""
        return self.seen > self.prompt and (CAPACITY - len(self.heads[layer, 0]) - LEADS[layer]) % REVIEW == 0

    def review(self) -> None:
        """Review the body and the lists, and compare."""
        self.body.review(1, self.layout, self.seen, self.choice, self.leaving)
        scored = [(layer, head) for layer, head in self.heads if self.has_turn(layer)]
        for layer, head in scored:
            if len(self.heads[layer, head]) + LEADS[layer] == CAPACITY:
                self.gone[layer, head] = self.lowest(layer, head)
        if len(self.heads[0, 0]) == CAPACITY:
            for at, entries in self.heads.items():
                self.heads[at] = [one for one in entries if one.position not in self.gone[at]]
            assert not self.leaving
            self.compare()
        for layer, head in scored:
            self.compare_positions(layer, head, len(self.heads[layer, head]))

    def lowest(self, layer: int, head: int) -> list[int]:
        """Return the positions of the lowest REVIEW entries that may go."""
        may_go = [
            one
            for one in self.heads[layer, head]
            if SINKS <= one.position < self.seen + LEADS[layer] - RECENT and one.position not in (7, 8)
        ]
        worth = [self.normalised(layer, head, group, may_go) for group in range(GROUPS)]
        best = {one.position: max(by[one.position] for by in worth) for one in may_go}
        return sorted(best, key=lambda position: best[position])[:REVIEW]

    def normalised(self, layer: int, head: int, group: int, entries: list[Entry]) -> dict[int, float]:
        queries = self.queries[layer][:, head, group]
        scores = [paper(ROPE, queries, one.key, self.seen - 1 - one.position) for one in entries]
        mean = sum(scores) / len(scores)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in scores) / len(scores))
        return {one.position: (score - mean) / deviation for one, score in zip(entries, scores, strict=True)}

    def compare(self) -> None:
        for (layer, head), entries in self.heads.items():
            keys = torch.stack([one.key for one in entries])
            positions = torch.tensor([one.position for one in entries])
            turned = cached(ROPE, keys.expand(HEADS, -1, -1), positions)[0]
            torch.testing.assert_close(self.body.planes[0][layer, 1, head, : len(entries)], turned)
            self.compare_positions(layer, head, len(entries) - LEADS[layer])  # the others come with its next turn

    def compare_positions(self, layer: int, head: int, count: int) -> None:
        found = self.body.positions[layer, 1, head, :count].tolist()
        assert found == [one.position for one in self.heads[layer, head][:count]]


@pytest.mark.parametrize("prompt", [9, 18, 20, 60])
def test_reviews_keep_the_entries_that_the_paper_scores_highest(prompt: int) -> None:
    slot, reviews = Slot(KV, prompt, prompt), 0
    for _ in range(30):
        reviews += len(slot.heads[0, 0]) == CAPACITY
        slot.review()
        slot.feed()
        assert len(slot.heads[0, 0]) <= CAPACITY
    assert reviews >= 4


def test_values_move_with_their_keys_and_other_rows_stay() -> None:
    slot = Slot(KV, 60, 1)
    slot.body.planes[0][:, 2], slot.body.positions[:, 2] = 5.0, 5
    for _ in range(41):
        slot.step()
    for layer, lead in enumerate(LEADS):
        live = slot.layout.live(slot.seen) - 1 - lead  # the newest entries are noted by the next review
        positions, values = slot.body.positions[layer, 1, :, :live], slot.body.planes[1][layer, 1, :, :live, 0]
        assert (positions >= 60).any()
        assert torch.equal(values[positions >= 60].int(), positions[positions >= 60])
    assert (slot.body.planes[0][:, 2] == 5).all()
    assert (slot.body.positions[:, 2] == 5).all()
    assert not slot.body.planes[0][:, 0].any()


def test_a_slot_has_only_its_positions_beside_its_planes() -> None:
    body = CalibratedBody.allocate(GROUP, 3, CAPACITY, torch.zeros)
    assert body.row_bytes == GROUP.slot_bytes(CAPACITY, 4)
    plain = GROUP._replace(calibrated=False)
    assert GROUP.slot_bytes(CAPACITY, 4) - plain.slot_bytes(CAPACITY, 4) == LAYERS * HEADS * CAPACITY * 4
    assert (GROUP.kind, len(body.layer(0))) == ("plain", 2)


def test_queries_that_all_are_alike_rank_by_the_waves_alone() -> None:
    """Then queries are as long as their mean."""
    queries = torch.randn(1, HEADS, GROUPS, WIDTH).expand(4, -1, -1, -1)
    torch.testing.assert_close(expected(ROPE, queries).spread, torch.zeros(HEADS, GROUPS, 8), atol=1e-6, rtol=0)


def test_entries_are_ranked_on_cuda_without_reading_a_value() -> None:
    """Fake tensors have no values, so an operation that needs one to go on would raise."""
    plan = layout(KV, 60, CAPACITY)
    with fake_cuda(), torch.inference_mode():
        body = CalibratedBody.allocate(GROUP, 3, CAPACITY, partial(torch.zeros, device="cuda"))
        mean, lengths = (torch.zeros(HEADS, GROUPS, width, device="cuda") for width in (WIDTH, 8))
        of = ExpectedQueries.of(mean, lengths, rotary(ROPE, "cuda"))
        is_fixed = fixed(body.positions[0, 1], plan, 64, KV)
        found = score(body.planes[0][0, 1].bfloat16(), of, 64, is_fixed)
        assert [(one.shape, str(one.device)) for one in (found, is_fixed)] == [((HEADS, CAPACITY), "cuda:0")] * 2
        assert (found.dtype, is_fixed.dtype) == (torch.float32, torch.bool)
