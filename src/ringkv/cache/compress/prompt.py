"""Prompt: all that a selector may look at, and what it answers.

L layers, H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Prompt(NamedTuple):
    """A staged prompt, and what can be done with it.

    scale: factor on the scores of attention. seen: tokens in all; more than n where an earlier turn evicted some.
    turn: (x [..., N, D], int positions [N]) -> x rotated by positions, and back by negative ones.
    follow: (start, stop) -> for a piece of w tokens at a time, queries [L, H, G, w, D] of the prompt's tokens start ..
    stop-1 read once more after its end, and the keys [L, H, tokens so far, D] of the repetition. room: how many tokens
    it may repeat at once.
    """

    q: Tensor  # [L, H, G, W, D], its last W queries, rotated
    keys: Tensor  # [L, H, n, D], rotated
    values: Tensor  # [L, H, n, D]
    scale: float
    seen: int
    turn: Callable[[Tensor, Tensor], Tensor]
    follow: Callable[[int, int], Iterable[tuple[Tensor, Tensor]]]
    room: int


class Select(Protocol):
    """How much each candidate low .. high-1 is worth keeping: float32 [L * H, high - low], none of it negative.

    `selector` is the class of `base.selectors` that the votes are registered for.
    """

    def __call__(self, prompt: Prompt, low: int, high: int, selector: Any) -> Tensor: ...
