"""Compression: a staged prompt becomes a prefix of a slot's shape.

L layers, H key-value heads, C entries per slot, D head_dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.snapkv import votes
from ringkv.cache.layouts import layout
from ringkv.engine.staging import Staged, Staging


@dataclass(frozen=True)
class TensorPrefix:
    """A compressed prompt. `source` int64 [L, H, live] tells which prompt token each live entry holds."""

    layout: Layout
    keys: Tensor  # [L, H, C, D]
    values: Tensor  # [L, H, C, D]
    source: Tensor
    logits: Tensor  # float32 [V]


def compress(staging: Staging, staged: Staged, choice: KVChoice, capacity: int) -> TensorPrefix:
    """Choose per layer and key-value head, and gather. Leaves the staged prompt as it is."""
    plan = layout(choice, staged.length, capacity)
    layers, _, heads, _, width = staging.keys.shape
    keys, values = (staging.keys.new_zeros(layers, heads, capacity, width) for _ in range(2))
    sources = []
    for layer in range(layers):
        source = choose(staging, staged, layer, choice, plan)
        index = source[..., None].expand(-1, -1, width)
        for whole, plane in ((staging.keys, keys), (staging.values, values)):
            plane[layer, :, : source.shape[1]] = whole[layer, staged.lane].gather(1, index)
        sources.append(source)
    return TensorPrefix(plan, keys, values, torch.stack(sources), staged.logits)


def choose(staging: Staging, staged: Staged, layer: int, choice: KVChoice, plan: Layout) -> Tensor:
    """int64 [H, live]: one layer's kept tokens. Only prompts that lose something are scored."""
    keys = staging.keys[layer, staged.lane, :, : staged.length]
    score = None
    if plan.picked:
        rows = min(choice.window, staged.length)
        q = staging.window[layer, staged.lane, :, :, -rows:]
        score = votes(q, keys, plan.head, plan.prompt - plan.tail, choice)
    return kept(plan, score, len(keys)).to(keys.device)
