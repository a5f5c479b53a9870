"""unequal_heads: which entries of a lane a slot takes if an earlier turn left more of them in some heads.

All heads end together, so the first place of a lane is that of the head with the most entries, and others begin later.
A layout counts the entries of a head on average.

L layers of a group, H key-value heads, n places of a lane, K selected tokens of a head on average.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.by_head import NEVER, entries_of, selected_tokens
from ringkv.cache.compress.select import votes_of_layers
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt
from ringkv.cache.protect import end
from ringkv.cache.steps import Steps


def missing(begins: Tensor | None) -> int:
    """Return how many entries less than the longest head the others have, on average; none if all begin at 0."""
    return 0 if begins is None else int(begins.sum()) // begins.numel()


class Places(NamedTuple):
    """The places of a lane before those that every head keeps. begins: int64 [L, H], the first of each head."""

    begins: Tensor
    plan: Layout

    @property
    def stop(self) -> int:
        return self.plan.prompt - self.plan.recent + missing(self.begins)

    def first(self, count: int) -> Tensor:
        """Return bool [L, H, stop], the first `count` places of each head."""
        place = torch.arange(self.stop, device=self.begins.device) - self.begins[..., None]
        return (place >= 0) & (place < count)


def kept_of_unequal(view: GroupView, choice: KVChoice, plan: Layout) -> Steps[Tensor]:
    """Return int64 [L, H, most], the place of each live entry, EMPTY after a head's last."""
    assert view.begins is not None
    if not plan.selected:
        places = Places(view.begins, plan)
        return entries_of(plan, places.first(places.stop), missing(view.begins))
    prompt = view.read()
    places = Places(view.begins.to(prompt.keys.device), plan)
    sinks = places.first(plan.sinks)
    candidates = places.first(places.stop) & ~sinks
    votes = (yield from _votes(prompt, choice, places)).masked_fill_(~candidates, NEVER)
    votes[candidates & places.first(end(choice.protect))] = float("inf")
    return entries_of(plan, sinks | selected_tokens(votes, view, choice, plan), missing(view.begins))


def _votes(prompt: StagedPrompt, choice: KVChoice, places: Places) -> Steps[Tensor]:
    """Return float32 [L, H, stop]; 0 for places that a head does not have."""
    if choice.select.prefills_twice:
        return (yield from votes_of_layers(prompt, 0, places.stop, choice.select))
    votes = prompt.keys.new_zeros(*places.begins.shape, places.stop, dtype=torch.float32)
    for layer, begins in enumerate(places.begins.tolist()):
        for head, first in enumerate(begins):
            alone, sinks = _head(prompt, layer, head, first), places.plan.sinks
            of_head = votes_of_layers(alone, sinks, places.stop - first, choice.select)
            votes[layer, head, first + sinks :] = (yield from of_head)[0, 0]
    return votes


def _head(prompt: StagedPrompt, layer: int, head: int, first: int) -> StagedPrompt:
    """Return the prompt as one head has it."""
    heads = slice(head, head + 1)
    keys, values = (plane[layer, heads, first:][None] for plane in (prompt.keys, prompt.values))
    return prompt._replace(q=[prompt.q[layer][heads]], keys=keys, values=values, begins=None)
