"""sizes: the hyperparameters of a decoder."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Sizes:
    """share: consecutive layers with the same keys and values. rank, rotated: elements of a latent, and of the rotary
    key, for latent attention. experts: of a layer. top_k: experts of a token.
    """

    vocabulary: int
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 512
    context: int = 4096
    theta: float = 10_000.0
    eps: float = 1e-6
    share: int = 1
    rank: int = 128
    rotated: int = 32
    experts: int = 4
    top_k: int = 2


def linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)
