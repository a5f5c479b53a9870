"""The selectors there are, by the names of `base.kv.SELECTORS`."""

from collections.abc import Mapping

from ringkv.cache.compress import expected_attention, keydiff, kvzip, snapkv, tova
from ringkv.cache.compress.prompt import Select

SELECT: Mapping[str, Select] = {
    "snapkv": snapkv.votes,
    "tova": tova.votes,
    "keydiff": keydiff.votes,
    "expected": expected_attention.votes,
    "kvzip": kvzip.votes,
}
