"""review: slots lose the N entries with the lowest scores, every N generated tokens (Scissorhands).

L layers of a group, R rows, H key-value heads, G query heads each, C entries per row, n live ones, N queries, D
elements of each.
A slot keeps its last N queries, and a review computes their attention in plain torch between steps, one slot at a time.
So decode attention is unchanged, and what a slot keeps does not depend on its neighbours. Layers are scored in turn, so
that no step waits for all of them. They evict together once the slot is due, because they share a layout.
Source: Scissorhands (arXiv 2305.17118), Algorithm 2, which as printed mixes counts of low weights and of high ones; low
ones count here. A weight below 1/t is low; t counts all tokens, not those that are left.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from ringkv.base.cache_spec import HISTORY
from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.body import Body
from ringkv.cache.compress.kept import ordered
from ringkv.cache.compress.vote_reduction import VoteReduction
from ringkv.cache.filling import decode
from ringkv.cache.protect import protected
from ringkv.cache.watching.ledger import Ledger, attention
from ringkv.kernels.encoding import NO_KEY

Leaving = dict[int, Tensor]
"""Of a row that is reviewed: by layer, the entries that were selected to be evicted, int64 [H, N], until they are."""


def review(
    body: Body, row: int, layout: Layout, seen: int, choice: KVChoice, leaving: Leaving, reduction: VoteReduction
) -> None:
    """Score the layers of a row whose turn it is, and evict of all layers if the row is full; in place.

    seen: tokens that the row has seen. leaving: what earlier calls selected; in place. reduction: of the
    attention of a head whose query heads are on several ranks.
    """
    assert layout.layers == len(body.group.layers), "the layout is that of another group"
    due = seen + layout.until_due(seen)
    first = max(layout.prompt, seen - HISTORY * layout.review)
    for layer in layout.scored(seen):
        ledger = _observed(body, layer, row, layout, seen, reduction)
        if layout.is_full(due):
            is_fixed = fixed(ledger.positions, layout, due, choice)
            leaving[layer] = lowest(ledger.scores(first), is_fixed, layout.review)
    if layout.is_full(seen):
        _evict(body, row, layout.capacity, leaving)


def _observed(body: Body, layer: int, row: int, layout: Layout, seen: int, reduction: VoteReduction) -> Ledger:
    """Return the ledger of a layer's live entries, with the tokens since its last turn noted in place."""
    live, newest = layout.live(seen), layout.unscored(seen)
    ledger = Ledger(*(tensor[layer, row, :, :live] for tensor in _noted(body)))
    ledger.append(newest, seen)
    queries = _newest_queries(body, layer, row, layout, range(seen - newest, seen))
    weights = attention(queries, _keys(body, layer, row, live), body.group.spec.scale)
    ledger.note(reduction.mean(weights), seen)
    return ledger


def _keys(body: Body, layer: int, row: int, live: int) -> Tensor:
    """Return the keys [H, n, D] of a layer's live entries, decoded if they are encoded."""
    layers, centers = slice(layer, layer + 1), body.slots.centers
    stored = [tensor[layers, row, :, :live] for tensor in body.key_tensors]
    return decode(body.group.spec.key, stored, None if centers is None else centers[layers, row])[0]


def _newest_queries(body: Body, layer: int, row: int, layout: Layout, positions: range) -> Tensor:
    """Return [H, G, W, D], the queries of the tokens at the last W positions.

    A review between them moves their entries, not their queries.
    """
    assert body.slots.queries is not None
    queries = body.slots.queries[layer, row]
    places = [layout.entry(position) % (len(queries) - 1) for position in positions]
    return queries[torch.tensor(places, device=body.device)].permute(1, 2, 0, 3)


def _evict(body: Body, row: int, entries: int, leaving: Leaving) -> None:
    centers, width = body.slots.centers, body.group.spec.key.width
    for layer in range(len(body.group.layers)):
        places = leaving.pop(layer)
        evict([tensor[layer, row, :, :entries] for tensor in (*body.planes, *_noted(body))], places)
        if centers is not None:
            evict_first_keys(centers[layer, row].unflatten(-1, (-1, width))[:, 1:], places, entries)


def _noted(body: Body) -> Ledger:
    assert body.noted is not None, "nothing watches these rows"
    return body.noted


def fixed(positions: Tensor, layout: Layout, due: int, choice: KVChoice) -> Tensor:
    """Return bool [H, n]: the entries of sinks, protected and recent tokens, which are not evicted.

    due: tokens that the slot will have seen when it evicts. Entries that come until then are recent.
    """
    recent = (due - choice.recent_entries(layout.capacity), due)
    spans = protected(((0, choice.sinks), *choice.protect), layout.prompt)
    ends = torch.tensor([*chain.from_iterable(spans)], dtype=positions.dtype, device=positions.device)
    # Spans are in order and do not touch.
    is_inside = torch.searchsorted(ends, positions.contiguous(), right=True) % 2 == 1
    return is_inside | (positions < choice.sinks) | ((positions >= recent[0]) & (positions < recent[1]))


def lowest(scores: Tensor, is_fixed: Tensor, count: int) -> Tensor:
    """Return int64 [H, count], the places of the lowest scores [H, n] that are not fixed, in ascending order.

    No score is negative. Of equal ones the last is returned.
    """
    keys = ordered(scores.masked_fill(is_fixed, float("inf")))
    return keys.topk(count, largest=False, sorted=False).indices.sort().values


def evict(planes: Sequence[Tensor], leaving: Tensor) -> None:
    """Evict entries int64 [H, count], in ascending order, of planes [H, n, ...].

    The others become the first ones, in place and in order.
    """
    kept = _others(leaving, planes[0].shape[1])
    for plane in planes:
        for entries, index in zip(plane, kept, strict=True):
            entries[: len(index)] = entries.index_select(0, index)  # copies whole rows; `gather` copies elements


def evict_first_keys(first: Tensor, leaving: Tensor, n: int) -> None:
    """Evict the exact keys [H, E, D] of the first of n entries when `evict` evicts entries int64 [H, count]; in place.

    An entry that was not among the first, and now is, has none. Nor has one that is free now.
    """
    count = first.shape[1]
    before = _others(leaving, n)[:, :count]
    exact = first.gather(1, before.clamp(max=count - 1)[..., None].expand(-1, -1, first.shape[2]))
    first[:, : before.shape[1]] = exact.masked_fill((before >= count)[..., None], NO_KEY)
    first[:, before.shape[1] :] = NO_KEY


def _others(places: Tensor, n: int) -> Tensor:
    """Return int64 [H, n - count], the places 0 .. n-1 that are not among int64 [H, count]; both ascend.

    p - i of them come before the place p, if it is the i-th of those that leave. So the j-th of them is j, and one more
    for each p - i up to j.
    """
    heads, count = places.shape
    index = torch.arange(n, device=places.device)
    ranks = index[: n - count]
    return ranks + torch.searchsorted(places - index[:count], ranks.repeat(heads, 1), right=True)
