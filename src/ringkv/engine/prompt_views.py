"""Lane: the prompt that a lane of the staging holds. PromptViews: such prompts as selectors read them.

L layers of a group, H key-value heads, G query heads each, D head_dim.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor

from ringkv.base.config import HeadShares
from ringkv.base.kv import KVChoice
from ringkv.base.repeat_words import FindWords
from ringkv.base.workspace import Workspace
from ringkv.cache.compress import kvzip
from ringkv.cache.compress.selection import Selection
from ringkv.cache.compress.staged_prompt import GroupView, StagedPrompt
from ringkv.cache.compress.vote_reduction import VoteReduction
from ringkv.cache.compress.working_set import WorkingSet
from ringkv.engine.passes import Passes, PromptPiece
from ringkv.engine.turns import Loaded
from ringkv.models.decoder import Decoder


@dataclass
class Lane:
    """The prompt that a lane of the staging holds, and how much of it.

    tokens: of the prompt. loaded: what the lane began with. count: staged entries that are the lane's own. working_set:
    what compactions keep. selections: what slots will hold, by choice. dropped: entries that compactions have evicted
    from each head. logits: float32 [V] of the prompt's last token, once all of it is prefilled.
    """

    tokens: tuple[int, ...]
    loaded: Loaded
    count: int
    workspace: Workspace
    working_set: WorkingSet
    selections: dict[KVChoice, Selection] = field(default_factory=dict)
    dropped: int = 0
    logits: Tensor | None = None

    @property
    def gap(self) -> int:
        """Tokens that an earlier turn or a compaction evicted. A token's position is its place plus this."""
        return self.loaded.cached.gap + self.dropped

    @property
    def entries(self) -> int:
        """Entries once it is full, or its prompt is prefilled: one for each token that was not evicted."""
        return min(len(self.tokens) - self.gap, self.workspace.size)

    @property
    def read(self) -> int:
        """Tokens that were prefilled here, and so have queries."""
        return len(self.tokens) - self.loaded.cached.tokens

    @property
    def kept(self) -> int:
        """Entries of a head, on average. It is less than `entries` if an earlier turn left more in some."""
        return self.entries - self.loaded.missing


class PromptViews:
    """Reads the staged prompt of a lane, which its methods get with the lane's number."""

    def __init__(self, passes: Passes, shares: HeadShares, find_words: FindWords) -> None:
        """shares: of each layer's heads, if they were measured. find_words: what asks the model to repeat a prompt."""
        self._passes, self._staging, self._programs = passes, passes.staging, passes.programs
        self._decoder, self._words = passes.programs.decoder, cache(find_words)
        self._groups, self._shares = self._decoder.groups, shares or ((),) * self._decoder.config.num_layers
        self._piece = min(self._programs.repeated, self._staging.window)  # of a repetition: a window keeps its queries
        self._readers: dict[tuple[int, int], list[int]] = {}  # by group and row, the layers that read the cache
        for layer, place in enumerate(self._decoder.places):
            self._readers.setdefault((place.group, place.row), []).append(layer)
        self._reductions = reductions(self._decoder)

    def of_groups(self, number: int, lane: Lane, queries: int) -> list[GroupView]:
        """Return a view of a lane in each group, with its last queries."""
        none, known = (None,) * len(self._groups), lane.loaded.known
        return [
            GroupView(
                group,
                partial(self.of_group, number, lane, index, queries),
                [self._shares[layer] for layer in group.layers],
                (known.begins or none)[index],
                (known.votes or none)[index],
            )
            for index, group in enumerate(self._groups)
        ]

    def of_group(self, number: int, lane: Lane, group: int, queries: int) -> StagedPrompt:
        """Return a staged prompt in one group of layers, with its last `queries`."""
        planes, spec = self._staging.lanes[number].read_group(group, slice(lane.entries)), self._groups[group].spec
        known, room = lane.loaded.known, lane.count - lane.entries - self._programs.repeated  # pieces end in the lane
        return StagedPrompt(
            q=self._queries(number, group, min(queries, lane.read)),
            keys=planes[0],
            values=planes[-1][..., : spec.value_width],
            scale=spec.scale,
            repeat=partial(self._repeat, number, lane, group),
            repeat_limit=max(0, room // self._piece + 1) * self._piece,
            reduction=self._reductions[group],
            words=self._words,
            begins=known.begins[group] if known.begins else None,
            known=known.votes[group] if known.votes else None,
        )

    def longest_repeatable(self, entries: int) -> int:
        """Return how many entries a lane of so many may have if at least one token is repeated after them."""
        pieces = kvzip.beside(self._words()) // self._piece  # before the last one, which is longer
        return entries - self._programs.repeated - pieces * self._piece

    def _queries(self, number: int, group: int, count: int) -> list[Tensor]:
        """Return the last `count` queries that read each layer's cache: [H, G, count, D] by layer.

        If several layers read a cache, G is the query heads of all of them.
        """
        last = self._staging.queries[group][:, number, :, :, self._staging.window - count :]
        places, rows = self._decoder.places, range(len(self._groups[group].layers))
        return [torch.cat([last[places[layer].reader] for layer in self._readers[group, row]], 1) for row in rows]

    def _repeat(
        self, number: int, lane: Lane, group: int, start: int, stop: int
    ) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Prefill the tokens at places start .. stop-1 of a staged prompt once more after its end, as KVzip does.

        The words that ask for it come first, and are part of the repetition.
        Yields, for each piece of w tokens, its queries [H, G, w, D] by layer and the keys of the repetition so far
        [L, H, tokens, D]. Overwrites the lane's entries after the prompt; what else changes is restored at the end.
        """
        n, gap = lane.entries, lane.gap
        repeated = (*self._words().before(start + gap), *lane.tokens[start + gap : stop + gap])
        with self._staging.preserved(number):
            for first in range(0, len(repeated), self._piece):
                tokens = repeated[first : first + self._piece]
                end = n + first + len(tokens)
                self._passes.run([PromptPiece(tokens, number, n + first, end, gap)])
                keys = self._staging.lanes[number].read_group(group, slice(n, end))[0]
                yield self._queries(number, group, len(tokens)), keys


def reductions(decoder: Decoder) -> list[VoteReduction]:
    """Return how ranks vote on what each group of layers keeps."""
    config = decoder.config
    attentions = [config.layers[config.kinds[group.layers[0]]].attention for group in decoder.groups]
    heads = [(attention.cache.key.heads, attention.queries) for attention in attentions]
    return [VoteReduction.of(config.rank, *of_group, config.exchange) for of_group in heads]
