"""sizes: what a decoder is made of, besides the kinds of its parts."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Sizes:
    """share: consecutive layers with the same keys and values. rank, rotated: elements of a latent, and of the key that
    rotates, for latent attention. experts, chosen: feed-forwards of a layer, and how many of them a token takes.
    """

    vocabulary: int
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    between: int = 512
    context: int = 4096
    theta: float = 10_000.0
    eps: float = 1e-6
    share: int = 1
    rank: int = 128
    rotated: int = 32
    experts: int = 4
    chosen: int = 2


def linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)
