"""valuediff: a compaction's score. It keeps the passages whose values differ most from the others, and uses no queries.

A token's difference is 1 minus the cosine between its value and the mean direction of all values, per layer and head.
Its vote is the mean difference of 15 tokens, itself in the middle, so that passages are kept whole. The score is ours;
the measure is KeyDiff's (arXiv 2504.15364, section 3), of values: rotated keys also differ by position, values do not.
With KeyDiff's votes in its place, `bench.workspace` finds fewer needles in a text.

L layers of a group, H key-value heads, n tokens.
"""

import torch
from torch import Tensor

from ringkv.base.selectors import SnapKV
from ringkv.cache.compress.keydiff import differences
from ringkv.cache.compress.snapkv import pool
from ringkv.cache.compress.staged_prompt import StagedPrompt

POOLED = SnapKV(kernel=15, pooling="avg")


def votes(prompt: StagedPrompt, low: int, high: int) -> Tensor:
    """Return float32 [L * H, high - low], none negative, for tokens low .. high-1."""
    return torch.cat([pool(differences(values, low, high), POOLED) for values in prompt.values])
