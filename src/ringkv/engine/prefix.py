"""Compression: a staged prompt becomes a prefix of a slot's shape.

L layers, H key-value heads, C entries per slot, D head_dim.
"""

from dataclasses import dataclass
from weakref import finalize

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.snapkv import votes
from ringkv.cache.layouts import layout
from ringkv.engine.staging import Staged, Staging
from ringkv.kernels.take_rows import take_rows


@dataclass(frozen=True)
class TensorPrefix:
    """A compressed prompt. `source` int64 [L, H, live] tells which prompt token each live entry holds."""

    layout: Layout
    keys: Tensor  # [L, H, C, D]
    values: Tensor  # [L, H, C, D]
    source: Tensor
    logits: Tensor  # float32 [V]


class PrefixMemory:
    """Planes that prefixes lie in, used again when a prefix is gone: fresh memory takes ten times as long to fill."""

    def __init__(self, staging: Staging, capacity: int) -> None:
        layers, _, heads, _, width = staging.keys.shape
        self._shape, self._like = (layers, heads, capacity, width), staging.keys
        self._free: list[tuple[Tensor, Tensor]] = []

    @property
    def capacity(self) -> int:
        return self._shape[2]

    def take(self) -> tuple[Tensor, Tensor]:
        """Keys and values [L, H, C, D], of any content."""
        if self._free:
            return self._free.pop()
        return self._like.new_empty(self._shape), self._like.new_empty(self._shape)

    def free_with(self, prefix: TensorPrefix) -> None:
        """Take a prefix's planes back when nobody holds it any more."""
        finalize(prefix, self._free.append, (prefix.keys, prefix.values)).atexit = False


def compress(staging: Staging, staged: Staged, choice: KVChoice, memory: PrefixMemory) -> TensorPrefix:
    """Choose per layer and key-value head, and gather. Leaves the staged prompt as it is."""
    plan = layout(choice, staged.length, memory.capacity)
    source = choose(staging, staged, choice, plan)
    planes = memory.take()
    for whole, plane in zip((staging.keys, staging.values), planes, strict=True):
        take_rows(whole, staged.lane, source, plane)
    prefix = TensorPrefix(plan, *planes, source, staged.logits)
    memory.free_with(prefix)
    return prefix


def choose(staging: Staging, staged: Staged, choice: KVChoice, plan: Layout) -> Tensor:
    """int64 [L, H, live]: each layer's kept tokens. Only prompts that lose something are scored."""
    layers, _, heads, _, _ = staging.keys.shape
    score = torch.cat([_score(staging, staged, i, choice, plan) for i in range(layers)]) if plan.picked else None
    chosen = kept(plan, score, layers * heads).to(staging.keys.device)
    return chosen.view(layers, heads, -1)


def _score(staging: Staging, staged: Staged, layer: int, choice: KVChoice, plan: Layout) -> Tensor:
    keys = staging.keys[layer, staged.lane, :, : staged.length]
    q = staging.window[layer, staged.lane, :, :, -min(choice.window, staged.length) :]
    return votes(q, keys, plan.head, plan.prompt - plan.tail, choice)
