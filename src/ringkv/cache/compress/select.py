"""The vote function of each selector of `base.selectors`."""

from collections.abc import Mapping

from ringkv.base.selectors import TOVA, ExpectedAttention, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress import expected_attention, keydiff, kvzip, snapkv, tova
from ringkv.cache.compress.staged_prompt import VoteFunction

VOTES: Mapping[type[Selector], VoteFunction] = {
    SnapKV: snapkv.votes,
    TOVA: tova.votes,
    KeyDiff: keydiff.votes,
    ExpectedAttention: expected_attention.votes,
    KVzip: kvzip.votes,
}
