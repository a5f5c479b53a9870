"""alike: how far two prompts are the same."""

from collections.abc import Sequence

from ringkv.base.kv import BLOCK


def common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens two prompts have in common, in whole blocks of the prefix store."""
    shorter = min(len(one), len(other)) // BLOCK * BLOCK
    blocks = range(0, shorter, BLOCK)
    return next((at for at in blocks if one[at : at + BLOCK] != other[at : at + BLOCK]), shorter)
