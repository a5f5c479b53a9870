"""Random numbers that depend only on (seed, position, token): a request samples the same tokens in any batch.

B slots, V vocabulary. The mixer is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), in wrapping int64.
"""

import torch
from torch import Tensor


def gumbel(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """Return float32 [B, V], standard Gumbel noise for int64 seed [B] and position [B].

    argmax(logits / temperature + gumbel) is a sample from softmax(logits / temperature): the Gumbel-max trick.
    """
    key = _mix(_mix(seed) + position)
    bits = _mix(key[:, None] + torch.arange(vocab, device=seed.device))
    return -torch.log(-torch.log(uniform(bits)))


def uniform(bits: Tensor) -> Tensor:
    """Return float32 strictly between 0 and 1 from the upper 23 of 64 bits. With 24 bits, some would round up to 1."""
    return (_shift(bits, 41).float() + 0.5) * 2.0**-23


def _mix(x: Tensor) -> Tensor:
    x = x * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    """Shift right logically; torch's shift is arithmetic."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
