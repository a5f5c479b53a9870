"""Compression: which tokens of a staged prompt go into a slot, and their way there.

L layers, H key-value heads, C entries per slot, D head_dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.prompt import Prompt
from ringkv.cache.compress.select import VOTES
from ringkv.cache.layouts import layout
from ringkv.cache.protect import protected, tokens
from ringkv.engine.staging import Staged, Staging
from ringkv.kernels.take_rows import take_rows


@dataclass(frozen=True)
class TensorPrefix:
    """A compressed prompt: what is kept is chosen, and stays in its lane until it is copied into a slot.

    `source` int64 [L, H, live] tells which of the lane's entries each live entry of the slot holds.
    """

    layout: Layout
    source: Tensor
    staged: Staged


def compress(prompt: Prompt, staged: Staged, choice: KVChoice, capacity: int) -> TensorPrefix:
    """Choose per layer and key-value head. Leaves the staged prompt as it is; `prompt` is how selectors see it."""
    plan = layout(choice, staged.length, capacity)
    return TensorPrefix(plan.moved(staged.start.gap), choose(prompt, choice, plan), staged)


def copy_to(slot: tuple[Tensor, Tensor], prefix: TensorPrefix, staging: Staging) -> None:
    """Fill a slot's keys and values [L, H, C, D] straight from the lane: what is kept is moved once."""
    for staged, plane in zip((staging.keys, staging.values), slot, strict=True):
        take_rows(staged, prefix.staged.lane, prefix.source, plane)


def choose(prompt: Prompt, choice: KVChoice, plan: Layout) -> Tensor:
    """int64 [L, H, live]: each layer's kept tokens. Only prompts that lose something are scored."""
    layers, heads = prompt.keys.shape[:2]
    votes = _votes(prompt, choice, plan) if plan.picked else None
    return kept(plan, votes, layers * heads).to(prompt.keys.device).view(layers, heads, -1)


def _votes(prompt: Prompt, choice: KVChoice, plan: Layout) -> Tensor:
    """Of the candidates; what is protected gets more than anything can. Where it takes all, nothing is scored."""
    low, high = plan.head, plan.prompt - plan.tail
    spans = [(max(start, low), min(stop, high)) for start, stop in protected(choice.protect, plan.prompt)]
    spans = [(start, stop) for start, stop in spans if start < stop]
    if spans and tokens(tuple(spans)) == plan.picked:
        layers, heads = prompt.keys.shape[:2]
        votes = prompt.keys.new_zeros(layers * heads, high - low, dtype=torch.float32)
    else:
        votes = VOTES[type(choice.select)](prompt, low, high, choice.select)
    for start, stop in spans:
        votes[:, start - low : stop - low] = float("inf")
    return votes
