"""The vote function of each selector of `base.selectors`, and the votes of any selector.

L layers, H key-value heads.
"""

from collections.abc import Mapping

from torch import Tensor

from ringkv.base.errors import InvalidRequest
from ringkv.base.selectors import TOVA, ExpectedAttention, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress import expected_attention, keydiff, kvzip, snapkv, tova
from ringkv.cache.compress.staged_prompt import StagedPrompt, VoteFunction

VOTES: Mapping[type[Selector], VoteFunction] = {
    SnapKV: snapkv.votes,
    TOVA: tova.votes,
    KeyDiff: keydiff.votes,
    ExpectedAttention: expected_attention.votes,
    KVzip: kvzip.votes,
}


def votes_of(prompt: StagedPrompt, low: int, high: int, selector: Selector) -> Tensor:
    """Return a selector's votes of the candidates low .. high-1, float32 [L, H, high - low].

    Raises InvalidRequest if a selector from outside the package returns another shape, or votes that are not finite.
    """
    shape = (*prompt.keys.shape[:2], high - low)
    if (votes := VOTES.get(type(selector))) is not None:
        return votes(prompt, low, high, selector).view(shape)
    return _checked(selector.votes(prompt, low, high), shape, selector.name)  # type: ignore[attr-defined]


def _checked(votes: object, shape: tuple[int, ...], name: str) -> Tensor:
    if not isinstance(votes, Tensor) or votes.shape != shape:
        returned = list(votes.shape) if isinstance(votes, Tensor) else type(votes).__name__
        raise InvalidRequest(f"votes() of {name} returned {returned}; return a tensor {list(shape)}", "kv_select")
    if not votes.isfinite().all():
        raise InvalidRequest(f"votes() of {name} returned NaN or infinity; return finite votes", "kv_select")
    return votes.float()
