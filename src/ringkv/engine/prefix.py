"""Compression: a staged prompt becomes a prefix of a slot's shape.

L layers, H key-value heads, C entries per slot, D head_dim.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
    source = choose(staging, staged, choice, plan)
    keys, values = (_gather(whole, staged.lane, source, capacity) for whole in (staging.keys, staging.values))
    return TensorPrefix(plan, keys, values, source, staged.logits)


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


def _gather(staged: Tensor, lane: int, source: Tensor, capacity: int) -> Tensor:
    """[L, P, H, S, D] of one lane -> [L, H, C, D]: whole rows, which is many times faster than number by number."""
    layers, lanes, heads, room, width = staged.shape
    first = torch.arange(layers * heads, device=source.device).view(layers, heads)
    first = (first // heads * lanes + lane) * heads + first % heads
    rows = staged.view(-1, width).index_select(0, (first[..., None] * room + source).flatten())
    kept = rows.view(layers, heads, -1, width)
    return kept if kept.shape[2] == capacity else F.pad(kept, (0, 0, 0, capacity - kept.shape[2]))
