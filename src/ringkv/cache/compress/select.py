"""The vote function of each selector of `base.selectors`, and the votes of any selector.

L layers, H key-value heads.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ringkv.base.errors import InvalidRequest, RingKVError
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress import keydiff, kvzip, snapkv, tova
from ringkv.cache.compress.staged_prompt import StagedPrompt, VoteFunction
from ringkv.cache.steps import Steps

log = logging.getLogger(__name__)

VOTES: Mapping[type[Selector], VoteFunction] = {
    SnapKV: snapkv.votes,
    TOVA: tova.votes,
    KeyDiff: keydiff.votes,
    KVzip: kvzip.votes,
}


def votes_of(prompt: StagedPrompt, low: int, high: int, selector: Selector) -> Iterable[Tensor | None]:
    """Yield a selector's votes of the candidates low .. high-1, as a `VoteFunction` does.

    Raises InvalidRequest if a selector from outside the package returns another shape, or votes that are not finite.
    """
    return VOTES.get(type(selector), _from_outside)(prompt, low, high, selector)


def votes_of_layers(prompt: StagedPrompt, low: int, high: int, selector: Selector) -> Steps[Tensor]:
    """Return the votes of all layers, float32 [L, H, high - low]."""
    return stacked(prompt, high - low, votes_of(prompt, low, high, selector))


def stacked(prompt: StagedPrompt, candidates: int, votes: Iterable[Tensor | None]) -> Steps[Tensor]:
    """Return the votes [H, candidates] of each layer as one tensor, [L, H, candidates]."""
    together = prompt.keys.new_empty(*prompt.keys.shape[:2], candidates, dtype=torch.float32)
    layers = iter(together)
    for of_layer in votes:
        if of_layer is not None:
            next(layers).copy_(of_layer)
        yield
    return together


def _from_outside(prompt: StagedPrompt, low: int, high: int, selector: Any) -> Iterator[Tensor]:
    shape, name = (*prompt.keys.shape[:2], high - low), selector.name
    try:
        votes = selector.votes(prompt, low, high)
    except RingKVError:
        raise
    except Exception as error:
        log.error("votes() of %s failed", name, exc_info=error)
        raise InvalidRequest(f"votes() of {name} raised {type(error).__name__}: {error}", "kv_select") from error
    if not isinstance(votes, Tensor) or votes.shape != shape:
        returned = list(votes.shape) if isinstance(votes, Tensor) else type(votes).__name__
        raise InvalidRequest(f"votes() of {name} returned {returned}; return a tensor {list(shape)}", "kv_select")
    if not votes.isfinite().all():
        raise InvalidRequest(f"votes() of {name} returned NaN or infinity; return finite votes", "kv_select")
    yield from votes.float()
