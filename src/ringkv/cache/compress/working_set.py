"""working_set: the entries that stay if a lane is compacted, because its prompt is longer than it.

They are the first ones, the newest ones, and of the others those with the most votes in each layer and head. The
queries that will need them are not known yet, and those at the end of a block attend to what is near. So `valuediff`
votes. The request's own selector has the last word, at the prompt's end.

L layers of a group, H key-value heads.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ringkv.base.kv import Layout
from ringkv.base.workspace import Workspace
from ringkv.cache.compress import valuediff
from ringkv.cache.compress.kept import kept
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt

RECENT = 8  # the newest entries take at least one of so many


class Score(Protocol):
    """Returns the votes of tokens low .. high-1 of a full lane: float32 [L * H, high - low], none negative.

    The prompt's queries are the last ones that were prefilled.
    """

    def __call__(self, prompt: StagedPrompt, low: int, high: int, /) -> Tensor: ...


SCORE: Score = valuediff.votes


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
    return kept(plan, SCORE(view.read(), low, high), layers * heads).view(layers, heads, -1)
