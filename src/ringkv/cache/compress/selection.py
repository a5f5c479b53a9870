"""Selection: which staged entries a slot will hold, for each group of layers.

L layers of a group, H key-value heads.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.cache_spec import IN_CHUNKS, LayerGroup
from ringkv.base.kv import KVChoice, Layout, Layouts
from ringkv.cache.compress.by_head import division, entries_of, selected_tokens, spread
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.saliency import saliency
from ringkv.cache.compress.select import VOTES
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
    return F.pad(votes, (0, beyond)).gather(2, source.clamp(min=0))


def select(views: Sequence[GroupView], choice: KVChoice, plans: Layouts) -> tuple[Tensor, ...]:
    """Return the sources of a `Selection`. Only groups whose layout selects tokens are read."""
    return tuple(_kept_tokens(view, choice, plan) for view, plan in zip(views, plans, strict=True))


def placed(views: Sequence[GroupView], choice: KVChoice, plans: Layouts, sources: Sequence[Tensor]) -> Layouts:
    """Return the layouts of a `Selection`, with what heads got if they divide the selected entries."""
    return tuple(
        spread(plan, source)
        if view.begins is not None or (plan.selected and division(view, choice) != "equal")
        else plan
        for view, plan, source in zip(views, plans, sources, strict=True)
    )


def saliency_of(views: Sequence[GroupView], choice: KVChoice, sources: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the saliency of a `Selection`. Only groups whose slots are in chunks or in pages are read."""
    return tuple(_salient(view, choice, source) for view, source in zip(views, sources, strict=True))


def _salient(view: GroupView, choice: KVChoice, source: Tensor) -> Tensor | None:
    measure = _measure(view.group, choice)
    return measure(view.read()).to(source.device).gather(2, source) if measure else None


def _kept_tokens(view: GroupView, choice: KVChoice, plan: Layout) -> Tensor:
    """Return int64 [L, H, live], each layer's kept tokens, as `entries_of` if heads divide the entries."""
    layers, heads = len(view.group.layers), view.group.spec.key.heads
    if view.begins is not None:
        return kept_of_unequal(view, choice, plan)
    if not plan.selected:
        return kept(plan, None, layers * heads).view(layers, heads, -1)
    votes = _votes(view.read(), choice, plan)
    if division(view, choice) == "equal":
        return kept(plan, votes, layers * heads).view(layers, heads, -1)
    mask = selected_tokens(votes.view(layers, heads, -1), view, choice, plan)
    return entries_of(plan, F.pad(mask, (plan.sinks, 0), value=True))


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
