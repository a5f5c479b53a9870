"""ReviewedBody: slots that lose the N entries that matter least, every N generated tokens.

L layers of a group, R rows, H key-value heads, C entries per row, n live ones.
A review is plain torch between steps, one slot at a time. So decode attention is unchanged, and what a slot keeps does
not depend on its neighbours. Layers are scored in turn, so that no step waits for all of them. They evict together once
the slot is due, because they share a layout.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.body import Body, Leaving, Planes
from ringkv.cache.watching.evict import evict, fixed, lowest


class Turn(NamedTuple):
    """One layer of a row in a review. planes and noted: of its live entries, [H, n, ...] each, as views."""

    layer: int
    row: int
    layout: Layout
    seen: int
    choice: KVChoice
    planes: Planes
    noted: Planes

    @property
    def newest(self) -> int:
        """Tokens since the layer's last turn. They are in its last entries."""
        return self.layout.unscored(self.seen)


@dataclass(frozen=True)
class ReviewedBody(Body, ABC):
    """noted: what reviews know of each entry, [L, R, H, C, ...] each. First is the position of its token, int32."""

    noted: Planes = ()

    @property
    def bytes(self) -> int:
        return super().bytes + sum(one.nbytes for one in self.noted)

    @property
    def positions(self) -> Tensor:
        """int32 [L, R, H, C], of the token that each entry holds; of the newest ones once their layer has its turn."""
        return self.noted[0]

    def note(self, row: int, tokens: Tensor) -> None:
        self.positions[:, row, :, : tokens.shape[-1]] = tokens

    def review(self, row: int, layout: Layout, seen: int, choice: KVChoice, leaving: Leaving) -> None:
        """Score the layers whose turn it is, and evict of all layers if the slot is full; in place.

        leaving: what earlier calls chose; in place.
        """
        assert layout.layers == len(self.group.layers), "the layout is that of another group"
        due = seen + layout.until_due(seen)
        for layer in layout.scored(seen):
            turn = self._turn(layer, row, layout, seen, choice)
            self.observe(turn)
            if layout.is_full(due):
                is_fixed = fixed(turn.noted[0], layout, due, choice)
                leaving[layer] = lowest(self.scores(turn, is_fixed), is_fixed, layout.review)
        if layout.is_full(seen):
            self._evict(row, layout.capacity, leaving)

    @abstractmethod
    def observe(self, turn: Turn) -> None:
        """Note the newest tokens of a layer; in place."""

    @abstractmethod
    def scores(self, turn: Turn, is_fixed: Tensor) -> Tensor:
        """Return float32 [H, n], none negative: what entries are worth. Those of bool [H, n] are not evicted."""

    def _turn(self, layer: int, row: int, layout: Layout, seen: int, choice: KVChoice) -> Turn:
        live = layout.live(seen)
        planes, noted = (tuple(one[layer, row, :, :live] for one in each) for each in (self.planes, self.noted))
        return Turn(layer, row, layout, seen, choice, planes, noted)

    def _evict(self, row: int, entries: int, leaving: Leaving) -> None:
        for layer in range(len(self.group.layers)):
            evict([one[layer, row, :, :entries] for one in (*self.planes, *self.noted)], leaving.pop(layer))
