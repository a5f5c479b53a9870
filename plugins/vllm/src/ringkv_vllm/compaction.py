"""compaction: what is kept of a prompt is copied to blocks of its own, in one layer, after its last chunk has run.

H key-value heads, G query heads each, D head size, W last queries, P prompt tokens, n kept ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.select import votes_of
from ringkv.cache.compress.staged_prompt import StagedPrompt


class Task(NamedTuple):
    """A prompt to compact. last: its last query's row in the step. blocks: int64, of the prompt. slots: int64 [n]."""

    choice: KVChoice
    plan: Layout
    last: int
    blocks: Tensor
    slots: Tensor


Read = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Reads keys and values [H, entries, D] of blocks."""
Write = Callable[[Tensor, Tensor, Tensor], None]
"""Writes keys and values [n, H, D] to slots."""


def compact(task: Task, query: Tensor, heads: int, scale: float, read: Read, write: Write) -> None:
    """Copy what a prompt keeps. query [tokens, H * G, D]: of the step's tokens, rotated."""
    plan = task.plan
    keys, values = (each[:, : plan.prompt] for each in read(task.blocks))
    tokens = kept(plan, _votes(task, query, keys, values, heads, scale), heads).to(keys.device)
    places = tokens[..., None].expand(-1, -1, keys.shape[-1])
    write(keys.gather(1, places).transpose(0, 1), values.gather(1, places).transpose(0, 1), task.slots)


def _votes(task: Task, query: Tensor, keys: Tensor, values: Tensor, heads: int, scale: float) -> Tensor | None:
    """Return float32 [H, candidates]; None if no token has to be selected."""
    plan, select = task.plan, task.choice.select
    if not plan.selected:
        return None
    last = query[task.last + 1 - max(1, select.queries) : task.last + 1]
    q = last.view(len(last), heads, -1, query.shape[-1]).permute(1, 2, 0, 3)
    prompt = StagedPrompt([q], keys[None], values[None], scale, _no_repetition, 0)
    votes = votes_of(prompt, plan.sinks, plan.prompt - plan.recent, select)
    return next(of_layer for of_layer in votes if of_layer is not None)


def _no_repetition(start: int, stop: int) -> list[tuple[list[Tensor], Tensor]]:
    raise AssertionError("settings.py refuses selectors that prefill a prompt twice")


def slots_of(row: Tensor, plan: Layout, moved: int, block: int) -> Tensor:
    """Return int64 [live], the slots of a prompt's kept entries. row: the request's blocks."""
    entries = torch.arange(plan.live(plan.prompt), device=row.device)
    return row[moved + entries // block].long() * block + entries % block
