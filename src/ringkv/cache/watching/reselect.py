"""reselect: the selector of the prompt selects again, among the entries that are left and the generated tokens.

With SnapKV (arXiv 2404.14469) the last generated tokens vote as the prompt's last ones did.
"""

from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.cache.compress.select import VOTES
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.watching.ledger import Review


def score(review: Review, choice: KVChoice) -> Tensor:
    """Return the selector's votes, float32 [H, n]; of W queries those that the selector would take of a prompt."""
    n, queries = review.keys.shape[1], min(review.q.shape[2], max(1, choice.select.queries))
    slot = StagedPrompt(
        q=[review.q[:, :, -queries:].contiguous()],
        keys=review.keys[None],
        values=review.values[None],
        scale=review.scale,
        seen=review.seen,
        rotate=(),
        repeat=lambda start, stop: (),
        repeat_limit=0,
    )
    return VOTES[type(choice.select)](slot, 0, n, choice.select)
