"""StagedPrompt: the input of a selector. GroupView: where it comes from. VoteFunction: what is computed.

L layers, H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.repeat_words import FindWords, no_words
from ringkv.cache.compress.vote_reduction import VoteReduction

AT_ONCE = 1 << 20  # float32 elements


class StagedPrompt(NamedTuple):
    """A staged prompt in one group of layers.

    scale: factor on attention scores. repeat: (start, stop) -> prefills the prompt's tokens start .. stop-1 again after
    its end, behind `words` that ask for them. For each piece of w tokens it yields queries [H, G, w, D] by layer, and
    the keys [L, H, tokens so far, D] of the repetition. repeat_limit: tokens that one call may prefill, words included.
    reduction: over query heads on other ranks. begins: int64 [L, H], each head's first place, before which there is
    nothing; None if that is 0. known: float32 [L, H, places], what an earlier turn's selector gave the first places.
    Only selectors whose votes last use them.
    """

    q: Sequence[Tensor]  # L of [H, G, W, D], the last W queries, rotated; G may differ between layers
    keys: Tensor  # [L, H, n, D], rotated
    values: Tensor  # [L, H, n, D]
    scale: float
    repeat: Callable[[int, int], Iterable[tuple[Sequence[Tensor], Tensor]]]
    repeat_limit: int
    reduction: VoteReduction = VoteReduction()
    words: FindWords = no_words
    begins: Tensor | None = None
    known: Tensor | None = None


def pieces(vectors: Tensor) -> tuple[Tensor, ...]:
    """Cut vectors [H, n, D] along n, into pieces of about 4 MB in float32."""
    heads, _, width = vectors.shape
    cut: tuple[Tensor, ...] = vectors.split(max(1, AT_ONCE // (heads * width)), 1)
    return cut


class GroupView(NamedTuple):
    """A group of layers, and how to read the staged prompt in it. shares: of its layers' heads, if they are known.

    begins, known: as the staged prompt has them.
    """

    group: LayerGroup
    read: Callable[[], StagedPrompt]
    shares: Sequence[Sequence[float]] = ()
    begins: Tensor | None = None
    known: Tensor | None = None


class VoteFunction(Protocol):
    """Yields each layer's votes of the candidates low .. high-1, float32 [H, high - low]; the highest are kept.

    It yields None wherever else it may pause. `selector` is of the class of `base.selectors` that the function is
    registered for.
    """

    def __call__(self, prompt: StagedPrompt, low: int, high: int, selector: Any) -> Iterable[Tensor | None]: ...
