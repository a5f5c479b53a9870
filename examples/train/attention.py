"""attention: grouped-query and latent attention.

B sequences, T tokens, H query heads, D elements of a head, X hidden elements.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.train.rotary import rotate
from examples.train.sizes import Sizes, linear

Pair = tuple[Tensor, Tensor]  # keys and values


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention in float32: on a CPU its gradient takes a sixth of the time that it takes in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), is_causal=True)


class GroupedAttention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245). A layer that shares another's keys and values has only queries."""

    def __init__(self, sizes: Sizes, has_keys: bool) -> None:
        super().__init__()
        self.sizes, self.has_keys = sizes, has_keys
        self.q_proj = linear(sizes.heads * sizes.head_dim, sizes.hidden)
        if has_keys:
            self.k_proj = linear(sizes.kv_heads * sizes.head_dim, sizes.hidden)
            self.v_proj = linear(sizes.kv_heads * sizes.head_dim, sizes.hidden)
        self.o_proj = linear(sizes.hidden, sizes.heads * sizes.head_dim)

    def pair(self, x: Tensor) -> Pair:
        """Keys and values, [B, H, T, D] each, repeated for the query heads of a group."""
        sizes = self.sizes
        keys = rotate(heads_of(self.k_proj(x), sizes.kv_heads), sizes.theta)
        values = heads_of(self.v_proj(x), sizes.kv_heads)
        group = sizes.heads // sizes.kv_heads
        return keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)

    @property
    def sources(self) -> list[nn.Linear]:
        """The projections of x that keys and values are computed from."""
        return [self.k_proj, self.v_proj]

    @property
    def rotary_keys(self) -> Tensor:
        """The weights of the keys' rotary elements, [heads, rotated, X], a view."""
        return self.k_proj.weight.unflatten(0, (self.sizes.kv_heads, -1))

    @property
    def rotary_queries(self) -> Tensor:
        """The weights of the queries' rotary elements, [H, rotated, X], a view."""
        return self.q_proj.weight.unflatten(0, (self.sizes.heads, -1))

    def group_values(self) -> None:
        """Give the heads of a group equal values, in place. Here they share one value head already."""

    def maps(self) -> Pair:
        """The matrices from x to the keys and to the values of all query heads, [H * D, X] each."""
        group = self.sizes.heads // self.sizes.kv_heads
        both = (
            each.weight.unflatten(0, (-1, self.sizes.head_dim)).repeat_interleave(group, dim=0).flatten(0, 1)
            for each in (self.k_proj, self.v_proj)
        )
        keys, values = both
        return keys, values

    def queries(self, x: Tensor) -> Tensor:
        return rotate(heads_of(self.q_proj(x), self.sizes.heads), self.sizes.theta)

    def forward(self, x: Tensor, pair: Pair) -> Tensor:
        return self.o_proj(attend(self.queries(x), *pair).transpose(1, 2).flatten(-2))
