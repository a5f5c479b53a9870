"""working_set: the entries that stay if a lane is compacted, because its prompt is longer than it.

They are the first ones, the newest ones, and of the others those with the most votes in each layer and head. The
queries that will need them are not known yet, and those at the end of a block attend to what is near. So values vote,
and passages stay whose values differ most from the others. The request's own selector has the last word, at the
prompt's end.

L layers of a group, H key-value heads, n tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.kv import Layout
from ringkv.base.selectors import SnapKV
from ringkv.base.workspace import Workspace
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.keydiff import differences
from ringkv.cache.compress.snapkv import pool
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt

RECENT = 8  # the newest entries take at least one of so many
POOLED = SnapKV(kernel=15, pooling="avg")


class WorkingSet(NamedTuple):
    """leading: first entries that always stay. recent: newest entries that always stay."""

    leading: int
    recent: int

    @classmethod
    def of(cls, workspace: Workspace, leading: int, recent: int) -> "WorkingSet":
        """Return the working set of a request with so many leading and recent tokens; fewer recent if not all fit."""
        return cls(leading, min(max(recent, workspace.kept // RECENT), workspace.kept - leading - 1))

    def places(self, views: Sequence[GroupView], workspace: Workspace) -> tuple[Tensor | None, ...]:
        """Return per group int64 [L, H, kept], the places of a full lane's entries that stay, in ascending order.

        None for layers with a sliding window: they need their newest entries only.
        """
        plan = self._layout(workspace)
        return tuple(None if view.group.window is not None else _kept(view, plan) for view in views)

    def _layout(self, workspace: Workspace) -> Layout:
        size, left, (leading, recent) = *workspace, self
        return Layout(size, leading, left - leading - recent, recent, left, base=size, ring=1, wraps=False)


def _kept(view: GroupView, plan: Layout) -> Tensor:
    layers, heads = len(view.group.layers), view.group.spec.key.heads
    low, high = plan.sinks, plan.prompt - plan.recent
    return kept(plan, votes(view.read(), low, high), layers * heads).view(layers, heads, -1)


def votes(prompt: StagedPrompt, low: int, high: int) -> Tensor:
    """Return float32 [L * H, high - low], none negative, the votes of tokens low .. high-1.

    A token's difference is 1 minus the cosine between its value and the mean direction of all values, per layer and
    head. Its vote is the mean difference of 15 tokens, itself in the middle, so that passages are kept whole. The
    measure is KeyDiff's (arXiv 2504.15364, section 3) of values: rotated keys also differ by position, and with their
    votes fewer needles in a text stay.
    """
    return torch.cat([pool(differences(values, low, high), POOLED) for values in prompt.values])
