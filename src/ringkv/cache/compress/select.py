"""The votes of each selector of `base.selectors`."""

from collections.abc import Mapping

from ringkv.base.selectors import TOVA, ExpectedAttention, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress import expected_attention, keydiff, kvzip, snapkv, tova
from ringkv.cache.compress.prompt import Select

VOTES: Mapping[type[Selector], Select] = {
    SnapKV: snapkv.votes,
    TOVA: tova.votes,
    KeyDiff: keydiff.votes,
    ExpectedAttention: expected_attention.votes,
    KVzip: kvzip.votes,
}
