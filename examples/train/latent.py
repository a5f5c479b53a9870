"""latent: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

T tokens, H heads, D elements of a head, X hidden elements.
"""

import torch
from torch import Tensor, nn

from examples.train.attention import GroupedAttention, Pair, heads_of
from examples.train.rotary import rotate
from examples.train.sizes import Sizes, linear


class LatentAttention(GroupedAttention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads follow from one latent,
    and `rotated` elements of every key are the same in all heads.
    """

    def __init__(self, sizes: Sizes, has_keys: bool) -> None:
        nn.Module.__init__(self)
        self.sizes, self.has_keys, self.nope = sizes, has_keys, sizes.head_dim - sizes.rotated
        self.q_proj = linear(sizes.heads * sizes.head_dim, sizes.hidden)
        self.kv_a_proj_with_mqa = linear(sizes.rank + sizes.rotated, sizes.hidden)
        self.kv_a_layernorm = nn.RMSNorm(sizes.rank, sizes.eps)
        self.kv_b_proj = linear(sizes.heads * (self.nope + sizes.head_dim), sizes.rank)
        self.o_proj = linear(sizes.hidden, sizes.heads * sizes.head_dim)

    def pair(self, x: Tensor) -> Pair:
        sizes = self.sizes
        latent, shared = self.kv_a_proj_with_mqa(x).split((sizes.rank, sizes.rotated), dim=-1)
        each = heads_of(self.kv_b_proj(self.kv_a_layernorm(latent)), sizes.heads)
        nope, values = each.split((self.nope, sizes.head_dim), dim=-1)
        rotated = rotate(shared[:, None], sizes.theta).expand(-1, sizes.heads, -1, -1)
        return torch.cat((nope, rotated), dim=-1), values

    @property
    def sources(self) -> list[nn.Linear]:
        return [self.kv_a_proj_with_mqa]

    @property
    def rotary_keys(self) -> Tensor:
        return self.kv_a_proj_with_mqa.weight[None, self.sizes.rank :]

    @property
    def rotary_queries(self) -> Tensor:
        return self.q_proj.weight.unflatten(0, (self.sizes.heads, -1))[:, self.nope :]

    def group_values(self) -> None:
        each = self.kv_b_proj.weight.unflatten(0, (self.sizes.heads, -1))[:, self.nope :]
        group = self.sizes.heads // self.sizes.kv_heads
        each.copy_(each[::group].repeat_interleave(group, dim=0))

    def maps(self) -> Pair:
        latent, shared = self.kv_a_proj_with_mqa.weight.split((self.sizes.rank, self.sizes.rotated))
        each = (self.kv_b_proj.weight @ latent).unflatten(0, (self.sizes.heads, -1))
        nope, values = each.split((self.nope, self.sizes.head_dim), dim=1)
        keys = torch.cat((nope, shared.expand(self.sizes.heads, -1, -1)), dim=1)
        return keys.flatten(0, 1), values.flatten(0, 1)

    def queries(self, x: Tensor) -> Tensor:
        nope, rotary = heads_of(self.q_proj(x), self.sizes.heads).split((self.nope, self.sizes.rotated), dim=-1)
        return torch.cat((nope, rotate(rotary, self.sizes.theta)), dim=-1)
