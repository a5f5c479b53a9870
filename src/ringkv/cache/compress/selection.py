"""Selection: which staged entries a slot will hold, for each group of layers.

L layers of a group, H key-value heads.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout, Layouts
from ringkv.cache.body import Row
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.prompt import Prompt
from ringkv.cache.compress.select import VOTES
from ringkv.cache.protect import protected, tokens


class Selection(NamedTuple):
    """A compressed prompt: what is kept is chosen, and stays in its lane until it is copied into a slot."""

    layouts: Layouts
    sources: tuple[Tensor, ...]  # of each group int64 [L, H, live]: the lane's entry that each entry of a slot takes

    def fill(self, slot: Row, lane: Row) -> None:
        """Copy what is kept from a lane to a slot."""
        for ours, theirs, source in zip(slot.bodies, lane.bodies, self.sources, strict=True):
            ours.take(slot.at, theirs, lane.at, source)


def select(prompts: Sequence[Prompt], choice: KVChoice, plans: Layouts) -> tuple[Tensor, ...]:
    """The sources of a `Selection`, from each group's view of the staged prompt and its layout."""
    return tuple(choose(prompt, choice, plan) for prompt, plan in zip(prompts, plans, strict=True))


def choose(prompt: Prompt, choice: KVChoice, plan: Layout) -> Tensor:
    """int64 [L, H, live]: each layer's kept tokens. Only prompts that lose something are scored."""
    layers, heads = prompt.keys.shape[:2]
    votes = _votes(prompt, choice, plan) if plan.selected else None
    return kept(plan, votes, layers * heads).to(prompt.keys.device).view(layers, heads, -1)


def _votes(prompt: Prompt, choice: KVChoice, plan: Layout) -> Tensor:
    """Of the candidates; what is protected gets more than anything can. Where it takes all, nothing is scored."""
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
