"""valuediff: keeps the passages whose values differ most from all others. It uses no queries.

It is KeyDiff's measure (arXiv 2504.15364, section 3), of values: rotated keys also differ by position, values do not.
A token's vote is the mean over its neighbours, so that passages are kept whole.

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
