"""Selection: which staged entries a slot will hold, for each group of layers.

L layers of a group, H key-value heads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.cache_spec import IN_CHUNKS, LayerGroup
from ringkv.base.kv import KVChoice, Layout, Layouts
from ringkv.cache.compress.by_head import division, entries_of, selected_tokens, spread
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.select import stacked, votes_of, votes_of_layers
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt
from ringkv.cache.compress.unequal_heads import kept_of_unequal, missing
from ringkv.cache.layouts import layouts
from ringkv.cache.protect import protected, tokens
from ringkv.cache.steps import Steps
from ringkv.kernels.window_votes import window_votes


class Selection(NamedTuple):
    """The kept entries of a staged prompt. They stay in the lane until `CacheRow.fill` copies them into a slot."""

    layouts: Layouts
    sources: tuple[Tensor, ...]  # per group int64 [L, H, live], the lane's entry for each of the slot, or EMPTY
    saliency: tuple[Tensor | None, ...]  # per group float32 [L, H, live], if the format of its slots has it
    votes: tuple[Tensor | None, ...] = ()  # per group float32 [L, H, live], if the selector's votes last and are known


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


def compress(lane: StagedLane, choice: KVChoice, capacity: int) -> Steps[Selection]:
    """Select what a slot of so many entries will hold of a prompt. The lane is unchanged.

    Only groups whose layout selects tokens, or whose slots are in chunks or in pages, are read. It may pause after each
    layer, and after each pass that repeats a part of the prompt.
    """
    plans = layouts(choice, lane.kept, capacity, lane.groups)
    views, selected, salient = lane.views(choice.select.queries), [], []
    for group, plan in enumerate(plans):
        if choice.keeps_votes and plan.selected:
            views[group] = yield from _with_votes(views[group], choice)
        selected.append((yield from kept_tokens(views[group], choice, plan)))
    moved = tuple(
        placed(view, choice, plan, source).shifted(lane.evicted)
        for view, plan, source in zip(views, plans, selected, strict=True)
    )
    sources = tuple(source.to(lane.device) for source in selected)
    for view, source in zip(lane.views(lane.window), sources, strict=True):
        salient.append((yield from _salient(view, choice, source)))
    lasting = (_lasting_votes(*group) for group in zip(views, plans, sources, strict=True))
    return Selection(moved, sources, tuple(salient), tuple(lasting))


def kept_tokens(view: GroupView, choice: KVChoice, plan: Layout) -> Steps[Tensor]:
    """Return the source of a `Selection` in one group, int64 [L, H, live]."""
    layers, heads = len(view.group.layers), view.group.spec.key.heads
    if view.begins is not None:
        return (yield from kept_of_unequal(view, choice, plan))
    if not plan.selected:
        return kept(plan, None, heads).expand(layers, -1, -1)
    prompt, low, high = view.read(), plan.sinks, plan.prompt - plan.recent
    votes = _votes(prompt, choice, low, high, plan.selected)
    if division(view, choice) == "equal":
        sources = []
        for of_layer in votes:
            if of_layer is not None:
                sources.append(kept(plan, of_layer, heads))
            yield
        return torch.stack(sources)
    mask = selected_tokens((yield from stacked(prompt, high - low, votes)), view, choice, plan)
    return entries_of(plan, F.pad(mask, (plan.sinks, 0), value=True))


def placed(view: GroupView, choice: KVChoice, plan: Layout, source: Tensor) -> Layout:
    """Return the layout of a `Selection` in one group, with what heads got if they divide the selected entries."""
    is_divided = view.begins is not None or (plan.selected and division(view, choice) != "equal")
    return spread(plan, source) if is_divided else plan


def _votes(
    prompt: StagedPrompt, choice: KVChoice, low: int, high: int, selected: int | None = None
) -> Iterator[Tensor | None]:
    """Yield the votes of tokens low .. high-1, as a `VoteFunction` does, infinite for protected ones.

    The selector is not run if protected tokens are all that are `selected`.
    """
    spans = protected(choice.protect, high)
    votes: Iterable[Tensor | None] = votes_of(prompt, low, high, choice.select)
    if tokens(spans, low) == selected:
        votes = prompt.keys.new_zeros(1, 1, high - low, dtype=torch.float32).expand(*prompt.keys.shape[:2], -1)
    for of_layer in votes:
        if spans and of_layer is not None:
            of_layer = of_layer.clone()
            for start, stop in spans:
                of_layer[:, max(0, start - low) : max(0, stop - low)] = float("inf")
        yield of_layer


def _with_votes(view: GroupView, choice: KVChoice) -> Steps[GroupView]:
    """Return a view with the votes of all places, which later turns will need."""
    prompt = view.read()
    votes = yield from votes_of_layers(prompt, 0, prompt.keys.shape[2], choice.select)
    return view._replace(read=lambda: prompt._replace(known=votes), known=votes)


def _lasting_votes(view: GroupView, plan: Layout, source: Tensor) -> Tensor | None:
    """Return the votes of a `Selection`, 0 for entries without one; None unless all before the ring have one."""
    if view.known is None or view.known.shape[2] < plan.protected + missing(view.begins):
        return None
    votes = view.known.to(source.device)
    beyond = max(0, int(source.max()) + 1 - votes.shape[2])
    return F.pad(votes, (0, beyond)).gather(2, source.clamp(min=0))


def _salient(view: GroupView, choice: KVChoice, source: Tensor) -> Steps[Tensor | None]:
    """Return what measures the entries of slots in chunks, or in pages that are read; None for others."""
    if view.group.slots.pages and choice.reads_pages:
        prompt = view.read()
        places = prompt.keys.shape[2]
        measured = yield from stacked(prompt, places, _votes(prompt, choice, 0, places))
    elif view.group.slots.encoding == IN_CHUNKS:
        measured = saliency(view.read())
    else:
        return None
    return measured.to(source.device).gather(2, source)


def saliency(prompt: StagedPrompt) -> Tensor:
    """Return float32 [L, H, n]: the mean attention that a token gets from the probes that see it, and query heads.

    By it zipcache gives a token 4 or 2 bits. ZipCache (arXiv 2405.14256, section 5) sums the attention of some queries,
    its probes, and divides it by the number of probes that see the token, or the last tokens would seem to matter
    least. Its probes are 10% of the prompt, the last 5% and 5% at random; ours are the last queries, which staging has
    for the selectors.
    """
    seen_by = torch.arange(prompt.keys.shape[2], 0, -1, device=prompt.keys.device).clamp(max=prompt.q[0].shape[2])
    layers = zip(prompt.q, prompt.keys, strict=True)
    votes = [prompt.reduction.mean(window_votes(q, keys, prompt.scale) / q.shape[1]) for q, keys in layers]
    return torch.stack(votes) / seen_by
