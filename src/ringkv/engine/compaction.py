"""Compaction: a lane that is shorter than its prompt evicts entries whenever it is full, before the next token.

L layers of a group, H key-value heads, S staged entries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.base.compacted import check_compacted, leading
from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.cache.compress.staged_prompt import GroupView
from ringkv.cache.compress.working_set import WorkingSet
from ringkv.cache.layouts import layout
from ringkv.engine.prompt_views import Lane
from ringkv.engine.staging import Staging


class Compaction:
    """Compacts lanes, and knows which tokens are left in them."""

    def __init__(self, staging: Staging, config: EngineConfig) -> None:
        self._staging, self._workspace, self._capacity = staging, config.workspace, config.capacity
        # Of each group int32 [L, H, S], which place of the prompt each entry of a compacted lane is; [L, H, 0] if lanes
        # are not compacted, or the group has a sliding window.
        size = staging.entries if config.prefill_workspace else 0
        shapes = ((len(g.layers), g.spec.key.heads, 0 if g.window else size) for g in staging.groups)
        self._tokens = [torch.zeros(shape, dtype=torch.int32, device=staging.device) for shape in shapes]

    @property
    def bytes(self) -> int:
        return sum(tokens.nbytes for tokens in self._tokens)

    def working_set(self, choice: KVChoice, tokens: int) -> WorkingSet:
        """Return what compactions keep of a prompt of so many tokens; nothing if it fits into its lane.

        The tokens of the last queries, which are kept, keep their entries too. Raises InvalidRequest for a choice that
        needs the whole prompt.
        """
        workspace, capacity = self._workspace, self._capacity
        if tokens <= workspace.size:
            return WorkingSet(0, 0)
        check_compacted(choice, workspace)
        # In a layout that evicts something, `recent` is what the choice keeps of the newest tokens.
        plan = layout(choice, tokens + capacity, capacity)
        recent = plan.recent * min(plan.capacity, workspace.kept) // plan.capacity
        return WorkingSet.of(workspace, leading(choice), max(recent, self._staging.window))

    def check(self, choice: KVChoice, lane: Lane) -> None:
        """Raise InvalidRequest for a choice that a compacted lane cannot serve."""
        if not lane.dropped:
            return
        check_compacted(choice, lane.workspace)
        if leading(choice) > lane.working_set.leading:
            raise InvalidRequest(
                f"kv_protect and kv_sinks keep {leading(choice):,} first tokens, and the prompt was prefilled for a "
                f"request that keeps {lane.working_set.leading:,}; send it by itself",
                "kv_protect",
            )

    def run(self, number: int, lane: Lane, views: Sequence[GroupView]) -> None:
        """Evict entries of a full lane. views: the lane's prompt in each group."""
        full, spans = self._workspace, self._staging.lanes[number].spans
        each = lane.working_set.places(views, full)
        kept = [None if places is None else places.to(self._staging.device) for places in each]
        following = min(full.block, len(lane.tokens) - full.size - lane.gap)
        self._staging.compact(number, full, kept, following)
        for tokens, (shift, _), places in zip(self._tokens, spans, kept, strict=True):
            if places is not None:
                _note(tokens[..., shift : shift + full.size], places, lane.dropped)
        lane.dropped += full.block

    def places_of(self, number: int, lane: Lane, group: int, entries: Tensor) -> Tensor:
        """Return int64 like entries [L, H, n], their places in the lane's prompt, and EMPTY for EMPTY."""
        if not lane.dropped or self._staging.groups[group].window is not None:
            return torch.where(entries < 0, entries, entries + lane.dropped)
        shift, _ = self._staging.lanes[number].spans[group]
        places = self._tokens[group].long().gather(2, (entries + shift).clamp(min=0))
        return torch.where(entries < 0, entries, places)


def _note(tokens: Tensor, kept: Tensor, dropped: int) -> None:
    """Note in place, int32 [L, H, size], which tokens a lane holds once its entries `kept` are its first ones.

    dropped: entries that earlier compactions have evicted; if there are none, its tokens are in order so far.
    """
    size, left = tokens.shape[2], kept.shape[2]
    places = torch.arange(size, dtype=tokens.dtype, device=tokens.device)
    if not dropped:
        tokens[:] = places
    tokens[..., :left] = tokens.gather(2, kept)
    tokens[..., left:] = places[left:] + dropped + size - left
