"""Selection: which staged entries a slot will hold, for each group of layers.

L layers of a group, H key-value heads.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import IN_CHUNKS, LayerGroup
from ringkv.base.kv import HeadBudgets, KVChoice, Layout, Layouts
from ringkv.cache.compress.by_head import SAFEGUARD, kept_by_head, selected_mask, spread
from ringkv.cache.compress.critical import output_norms, weighed
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.saliency import saliency
from ringkv.cache.compress.select import VOTES
from ringkv.cache.compress.shares import Bounds, divided_within, pyramid
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt
from ringkv.cache.compress.unequal_heads import kept_of_unequal, missing
from ringkv.cache.earlier import Earlier
from ringkv.cache.layouts import layouts
from ringkv.cache.protect import protected, tokens
from ringkv.cache.rows import CacheRow


def _every_vote(prompt: StagedPrompt, choice: KVChoice) -> Tensor:
    """Return float32 [L, H, n], what the selector gives each token of a prompt; protected ones get infinity."""
    layers, heads, tokens, _ = prompt.keys.shape
    votes = VOTES[type(choice.select)](prompt, 0, tokens, choice.select)
    for start, stop in protected(choice.protect, tokens):
        votes[:, start:stop] = float("inf")
    return votes.view(layers, heads, tokens)


def _measure(group: LayerGroup, choice: KVChoice) -> Callable[[StagedPrompt], Tensor] | None:
    """Return what measures the tokens of a prompt for slots in chunks, or in pages that are read; else None."""
    if group.slots.pages and choice.reads_pages:
        return partial(_every_vote, choice=choice)
    return saliency if group.slots.encoding == IN_CHUNKS else None


class Selection(NamedTuple):
    """The kept entries of a staged prompt. They stay in the lane until `fill` copies them into a slot."""

    layouts: Layouts
    sources: tuple[Tensor, ...]  # per group int64 [L, H, live], the lane's entry for each of the slot, or EMPTY
    saliency: tuple[Tensor | None, ...]  # per group float32 [L, H, live], if the format of its slots has it
    votes: tuple[Tensor | None, ...] = ()  # per group float32 [L, H, live], if the selector's votes last and are known

    def fill(self, slot: CacheRow, lane: CacheRow, earlier: Sequence[Sequence[Earlier]] = ()) -> None:
        """Copy the kept entries from a lane to a slot. earlier: by group and plane, those that it began with."""
        lane.fill(slot, self.sources, [layout.fixed for layout in self.layouts], self.saliency, earlier)


class StagedLane(NamedTuple):
    """A prompt in a lane of the staging, as `compress` needs it.

    groups: of layers. kept: entries of a head, on average. evicted: tokens that an earlier turn or a compaction has
    evicted. window: last queries that are staged. views: returns a view of the lane in each group, with so many of
    its last queries. device: where slots are.
    """

    groups: Sequence[LayerGroup]
    kept: int
    evicted: int
    window: int
    views: Callable[[int], list[GroupView]]
    device: torch.device


def compress(lane: StagedLane, choice: KVChoice, capacity: int) -> Selection:
    """Select what a slot of so many entries will hold of a prompt. The lane is unchanged."""
    plans = layouts(choice, lane.kept, capacity, lane.groups)
    views = with_lasting_votes(lane.views(choice.select.queries), choice, plans)
    selected = select(views, choice, plans)
    moved = tuple(plan.shifted(lane.evicted) for plan in placed(views, choice, plans, selected))
    sources = tuple(source.to(lane.device) for source in selected)
    salient = saliency_of(lane.views(lane.window), choice, sources)
    return Selection(moved, sources, salient, lasting_votes(views, plans, sources))


def with_lasting_votes(views: Sequence[GroupView], choice: KVChoice, plans: Layouts) -> list[GroupView]:
    """Return the views with the votes of all places if they select, and later turns will need the votes."""
    each = zip(views, plans, strict=True)
    return [_with_votes(view, choice) if choice.keeps_votes and plan.selected else view for view, plan in each]


def lasting_votes(views: Sequence[GroupView], plans: Layouts, sources: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the votes of a `Selection`, if all before the ring have one; 0 for others."""
    return tuple(_at(view, plan, source) for view, plan, source in zip(views, plans, sources, strict=True))


def _with_votes(view: GroupView, choice: KVChoice) -> GroupView:
    prompt = view.read()
    layers, heads, places, _ = prompt.keys.shape
    votes = VOTES[type(choice.select)](prompt, 0, places, choice.select).view(layers, heads, places)
    return view._replace(read=lambda: prompt._replace(known=votes), known=votes)


def _at(view: GroupView, plan: Layout, source: Tensor) -> Tensor | None:
    if view.known is None or view.known.shape[2] < plan.protected + missing(view.begins):
        return None
    votes = view.known.to(source.device)
    beyond = max(0, int(source.max()) + 1 - votes.shape[2])
    return torch.nn.functional.pad(votes, (0, beyond)).gather(2, source.clamp(min=0))


def select(views: Sequence[GroupView], choice: KVChoice, plans: Layouts) -> tuple[Tensor, ...]:
    """Return the sources of a `Selection`. Only groups whose layout selects tokens are read."""
    return tuple(_kept_tokens(view, choice, plan) for view, plan in zip(views, plans, strict=True))


def placed(views: Sequence[GroupView], choice: KVChoice, plans: Layouts, sources: Sequence[Tensor]) -> Layouts:
    """Return the layouts of a `Selection`, with what heads got if they divide the selected entries."""
    return tuple(
        spread(plan, source) if view.begins is not None or _divides(view, choice, plan) else plan
        for view, plan, source in zip(views, plans, sources, strict=True)
    )


def saliency_of(views: Sequence[GroupView], choice: KVChoice, sources: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the saliency of a `Selection`. Only groups whose slots are in chunks or in pages are read."""
    return tuple(_salient(view, choice, source) for view, source in zip(views, sources, strict=True))


def _salient(view: GroupView, choice: KVChoice, source: Tensor) -> Tensor | None:
    measure = _measure(view.group, choice)
    return measure(view.read()).to(source.device).gather(2, source) if measure else None


def _kept_tokens(view: GroupView, choice: KVChoice, plan: Layout) -> Tensor:
    """Return int64 [L, H, live], each layer's kept tokens, as `kept_by_head` if heads divide the entries."""
    layers, heads = len(view.group.layers), view.group.spec.key.heads
    if view.begins is not None:
        return kept_of_unequal(view, choice, plan, _DIVISIONS[_division(view, choice)])
    if not plan.selected:
        return kept(plan, None, layers * heads).view(layers, heads, -1)
    prompt = view.read()
    votes = _votes(prompt, choice, plan).view(layers, heads, -1)
    division = _division(view, choice)
    counts = _DIVISIONS[division](votes, view, choice, plan)
    if choice.weigh == "values":
        norms = output_norms(prompt, plan.sinks, plan.prompt - plan.recent, choice.select.joins_heads)
        votes = weighed(votes, norms, counts)
    if division != "equal":
        return kept_by_head(plan, votes, counts)
    return kept(plan, votes.flatten(0, 1), layers * heads).view(layers, heads, -1)


def _equally(votes: Tensor, view: GroupView, choice: KVChoice, plan: Layout) -> Tensor:
    return votes.new_full(votes.shape[:2], plan.selected, dtype=torch.int64)


def _by_votes(votes: Tensor, view: GroupView, choice: KVChoice, plan: Layout) -> Tensor:
    return selected_mask(votes, plan.selected, choice.heads).sum(-1)


def _by_layer(votes: Tensor, view: GroupView, choice: KVChoice, plan: Layout) -> Tensor:
    layers, heads, _ = votes.shape
    bounds = [Bounds(_protected(votes), most) for most in _candidates(votes).amin(1).tolist()]
    counts = divided_within(pyramid(layers), layers * plan.selected, bounds)
    return votes.new_tensor(counts, dtype=torch.int64)[:, None].expand(-1, heads)


def _by_profile(votes: Tensor, view: GroupView, choice: KVChoice, plan: Layout) -> Tensor:
    layers, heads, _ = votes.shape
    least = max(int(SAFEGUARD * plan.selected), _protected(votes))
    bounds = [Bounds(min(least, most), most) for most in _candidates(votes).flatten().tolist()]
    counts = divided_within([share for layer in view.shares for share in layer], layers * heads * plan.selected, bounds)
    return votes.new_tensor(counts, dtype=torch.int64).view(layers, heads)


_DIVISIONS: Mapping[HeadBudgets, Callable[[Tensor, GroupView, KVChoice, Layout], Tensor]] = {
    "equal": _equally,
    "adaptive": _by_votes,
    "global": _by_votes,
    "pyramid": _by_layer,
    "profile": _by_profile,
}
"""How many tokens each head selects, int64 [L, H]."""


def _candidates(votes: Tensor) -> Tensor:
    """Return how many tokens each head may select, int64 [L, H]."""
    return (votes >= 0).sum(-1)


def _protected(votes: Tensor) -> int:
    """Return how many protected tokens every head selects; their votes are infinite."""
    return int(votes[0, 0].isinf().sum())


def _divides(view: GroupView, choice: KVChoice, plan: Layout) -> bool:
    """Return whether heads divide the selected entries."""
    return plan.selected > 0 and _division(view, choice) != "equal"


def _division(view: GroupView, choice: KVChoice) -> HeadBudgets:
    """Return what the heads of a group's layers divide; those of slots of equal heads divide nothing."""
    return choice.heads if view.group.slots.is_ragged else "equal"


def _votes(prompt: StagedPrompt, choice: KVChoice, plan: Layout) -> Tensor:
    """Return the candidates' votes, infinite for protected tokens.

    The selector is not run if protected tokens fill the selection.
    """
    low, high = plan.sinks, plan.prompt - plan.recent
    spans = [(max(start, low), min(stop, high)) for start, stop in protected(choice.protect, plan.prompt)]
    spans = [(start, stop) for start, stop in spans if start < stop]
    if spans and tokens(tuple(spans)) == plan.selected:
        layers, heads = prompt.keys.shape[:2]
        votes = prompt.keys.new_zeros(layers * heads, high - low, dtype=torch.float32)
    else:
        votes = VOTES[type(choice.select)](prompt, low, high, choice.select)
    for start, stop in spans:
        votes[:, start - low : stop - low] = float("inf")
    return votes
