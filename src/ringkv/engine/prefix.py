"""Compression: which tokens of a staged prompt go into a slot, and their way there.

L layers, H key-value heads, C entries per slot, D head_dim.
"""

from dataclasses import dataclass

from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.snapkv import votes
from ringkv.cache.layouts import layout
from ringkv.engine.staging import Staged, Staging
from ringkv.kernels.take_rows import take_rows


@dataclass(frozen=True)
class TensorPrefix:
    """A compressed prompt: what is kept is chosen, and stays in its lane until it is copied into a slot.

    `source` int64 [L, H, live] tells which prompt token each live entry holds.
    """

    layout: Layout
    source: Tensor
    staged: Staged


def compress(staging: Staging, staged: Staged, choice: KVChoice, capacity: int) -> TensorPrefix:
    """Choose per layer and key-value head. Leaves the staged prompt as it is."""
    plan = layout(choice, staged.length, capacity)
    return TensorPrefix(plan, choose(staging, staged, choice, plan), staged)


def copy_to(slot: tuple[Tensor, Tensor], prefix: TensorPrefix, staging: Staging) -> None:
    """Fill a slot's keys and values [L, H, C, D] straight from the lane: what is kept is moved once."""
    for staged, plane in zip((staging.keys, staging.values), slot, strict=True):
        take_rows(staged, prefix.staged.lane, prefix.source, plane)


def choose(staging: Staging, staged: Staged, choice: KVChoice, plan: Layout) -> Tensor:
    """int64 [L, H, live]: each layer's kept tokens. Only prompts that lose something are scored."""
    layers, _, heads, _, _ = staging.keys.shape
    chosen = kept(plan, _votes(staging, staged, choice, plan) if plan.picked else None, layers * heads)
    return chosen.to(staging.keys.device).view(layers, heads, -1)


def _votes(staging: Staging, staged: Staged, choice: KVChoice, plan: Layout) -> Tensor:
    queries = staging.window[:, staged.lane, :, :, -min(choice.window, staged.length) :]
    keys = staging.keys[:, staged.lane, :, : staged.length]
    return votes(queries, keys, plan.head, plan.prompt - plan.tail, choice)
