"""model: a decoder in plain PyTorch, whose parameters have the names of a Hugging Face checkpoint.

B sequences, T tokens, H query heads, K key-value heads, D elements of a head, X hidden elements, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Pair = tuple[Tensor, Tensor]


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


def rotate(x: Tensor, theta: float, direction: float = 1.0) -> Tensor:
    """Return [B, H, T, D] with its halves rotated by position (RoPE, arXiv 2104.09864); direction -1 rotates back."""
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * speed * direction
    cos, sin = angle.cos(), angle.sin()
    first, second = x.float().split(half, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention in float32, whose gradient takes a sixth of bfloat16's time on a CPU."""
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), is_causal=True)


class GroupedAttention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245). A layer that shares another's keys and values has only queries."""

    def __init__(self, sizes: Sizes, has_keys: bool) -> None:
        super().__init__()
        self.sizes, self.has_keys = sizes, has_keys
        self.q_proj = linear(sizes.heads * sizes.head, sizes.hidden)
        if has_keys:
            self.k_proj = linear(sizes.kv_heads * sizes.head, sizes.hidden)
            self.v_proj = linear(sizes.kv_heads * sizes.head, sizes.hidden)
        self.o_proj = linear(sizes.hidden, sizes.heads * sizes.head)

    def pair(self, x: Tensor) -> Pair:
        """Keys and values, [B, H, T, D] each; query heads of a group have the same ones."""
        sizes = self.sizes
        keys = rotate(heads_of(self.k_proj(x), sizes.kv_heads), sizes.theta)
        values = heads_of(self.v_proj(x), sizes.kv_heads)
        group = sizes.heads // sizes.kv_heads
        return keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)

    @property
    def sources(self) -> list[nn.Linear]:
        """The matrices that keys and values begin with."""
        return [self.k_proj, self.v_proj]

    @property
    def turning(self) -> Tensor:
        """The weights of rotated elements of keys, [heads, rotated, X], to change in place."""
        return self.k_proj.weight.unflatten(0, (self.sizes.kv_heads, -1))

    @property
    def turning_queries(self) -> Tensor:
        """The weights of rotated elements of queries, [H, rotated, X], to change in place."""
        return self.q_proj.weight.unflatten(0, (self.sizes.heads, -1))

    def group_values(self) -> None:
        """Give the heads of a group equal values, in place; here they have them always."""

    def maps(self) -> Pair:
        """The matrices from x to the keys and to the values of all query heads, [H * D, X] each."""
        group = self.sizes.heads // self.sizes.kv_heads
        both = (
            each.weight.unflatten(0, (-1, self.sizes.head)).repeat_interleave(group, dim=0).flatten(0, 1)
            for each in (self.k_proj, self.v_proj)
        )
        keys, values = both
        return keys, values

    def queries(self, x: Tensor) -> Tensor:
        return rotate(heads_of(self.q_proj(x), self.sizes.heads), self.sizes.theta)

    def forward(self, x: Tensor, pair: Pair) -> Tensor:
        return self.o_proj(attend(self.queries(x), *pair).transpose(1, 2).flatten(-2))


class LatentAttention(GroupedAttention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads follow from one latent,
    and `rotated` elements of every key are the same in all heads.
    """

    def __init__(self, sizes: Sizes, has_keys: bool) -> None:
        nn.Module.__init__(self)
        self.sizes, self.has_keys, self.plain = sizes, has_keys, sizes.head - sizes.rotated
        self.q_proj = linear(sizes.heads * sizes.head, sizes.hidden)
        self.kv_a_proj_with_mqa = linear(sizes.rank + sizes.rotated, sizes.hidden)
        self.kv_a_layernorm = nn.RMSNorm(sizes.rank, sizes.eps)
        self.kv_b_proj = linear(sizes.heads * (self.plain + sizes.head), sizes.rank)
        self.o_proj = linear(sizes.hidden, sizes.heads * sizes.head)

    def pair(self, x: Tensor) -> Pair:
        sizes = self.sizes
        latent, shared = self.kv_a_proj_with_mqa(x).split((sizes.rank, sizes.rotated), dim=-1)
        each = heads_of(self.kv_b_proj(self.kv_a_layernorm(latent)), sizes.heads)
        plain, values = each.split((self.plain, sizes.head), dim=-1)
        turned = rotate(shared[:, None], sizes.theta).expand(-1, sizes.heads, -1, -1)
        return torch.cat((plain, turned), dim=-1), values

    @property
    def sources(self) -> list[nn.Linear]:
        return [self.kv_a_proj_with_mqa]

    @property
    def turning(self) -> Tensor:
        return self.kv_a_proj_with_mqa.weight[None, self.sizes.rank :]

    @property
    def turning_queries(self) -> Tensor:
        return self.q_proj.weight.unflatten(0, (self.sizes.heads, -1))[:, self.plain :]

    def group_values(self) -> None:
        each = self.kv_b_proj.weight.unflatten(0, (self.sizes.heads, -1))[:, self.plain :]
        group = self.sizes.heads // self.sizes.kv_heads
        each.copy_(each[::group].repeat_interleave(group, dim=0))

    def maps(self) -> Pair:
        latent, shared = self.kv_a_proj_with_mqa.weight.split((self.sizes.rank, self.sizes.rotated))
        each = (self.kv_b_proj.weight @ latent).unflatten(0, (self.sizes.heads, -1))
        plain, values = each.split((self.plain, self.sizes.head), dim=1)
        keys = torch.cat((plain, shared.expand(self.sizes.heads, -1, -1)), dim=1)
        return keys.flatten(0, 1), values.flatten(0, 1)

    def queries(self, x: Tensor) -> Tensor:
        plain, turning = heads_of(self.q_proj(x), self.sizes.heads).split((self.plain, self.sizes.rotated), dim=-1)
        return torch.cat((plain, rotate(turning, self.sizes.theta)), dim=-1)


class FeedForward(nn.Module):
    """A gated feed-forward (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = linear(sizes.between, sizes.hidden)
        self.up_proj = linear(sizes.between, sizes.hidden)
        self.down_proj = linear(sizes.hidden, sizes.between)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Expert(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1, self.w3 = (linear(sizes.between, sizes.hidden) for _ in range(2))
        self.w2 = linear(sizes.hidden, sizes.between)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """A mixture of experts (Mixtral, arXiv 2401.04088): each token takes the `chosen` experts of the highest scores.

    `balance` is the last forward's loss of uneven use, 1 if even (Switch Transformer, arXiv 2101.03961).
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.chosen = sizes.chosen
        self.gate = linear(sizes.experts, sizes.hidden)
        self.experts = nn.ModuleList(Expert(sizes) for _ in range(sizes.experts))
        self.balance = torch.tensor(0.0)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        shares = self.gate(flat).float().softmax(-1)
        weights, chosen = shares.topk(self.chosen, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        self.balance = self._balance(shares, chosen)
        total = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, rank = (chosen == index).nonzero(as_tuple=True)
            result = expert(flat[rows]) * weights[rows, rank, None]
            total = total.index_add(0, rows, result.to(total.dtype))
        return total.view_as(x)

    def _balance(self, shares: Tensor, chosen: Tensor) -> Tensor:
        experts = shares.shape[-1]
        used = F.one_hot(chosen, experts).float().mean((0, 1))
        return experts * (used * shares.mean(0)).sum()


class Layer(nn.Module):
    def __init__(self, sizes: Sizes, attention: nn.Module, name: str, feed_forward: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden, sizes.eps)
        self.self_attn = attention
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden, sizes.eps)
        self.feed_forward_name = name
        self.add_module(name, feed_forward)

    def forward(self, x: Tensor, pair: Pair | None) -> tuple[Tensor, Pair]:
        """Return x after this layer, and the keys and values that it used: `pair`, or its own if that is None."""
        normed = self.input_layernorm(x)
        pair = self.self_attn.pair(normed) if pair is None else pair
        x = x + self.self_attn(normed, pair)
        return x + self.get_submodule(self.feed_forward_name)(self.post_attention_layernorm(x)), pair


@dataclass(frozen=True)
class Parts:
    """What variants differ in. feed_forward_name: its name in the checkpoint."""

    attention: Callable[[Sizes, bool], nn.Module] = GroupedAttention
    feed_forward: Callable[[Sizes], nn.Module] = FeedForward
    feed_forward_name: str = "mlp"


class Backbone(nn.Module):
    def __init__(self, sizes: Sizes, parts: Parts) -> None:
        super().__init__()
        self.share = sizes.share
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(
            Layer(
                sizes,
                parts.attention(sizes, index % sizes.share == 0),
                parts.feed_forward_name,
                parts.feed_forward(sizes),
            )
            for index in range(sizes.layers)
        )
        self.norm = nn.RMSNorm(sizes.hidden, sizes.eps)

    def forward(self, tokens: Tensor) -> Tensor:
        x, pair = self.embed_tokens(tokens), None
        for index, layer in enumerate(self.layers):
            x, pair = layer(x, pair if index % self.share else None)
        return self.norm(x)


class Decoder(nn.Module):
    """Logits are computed for the tokens that are asked for, because a vocabulary costs more than all layers."""

    def __init__(self, sizes: Sizes, parts: Parts) -> None:
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.model = Backbone(sizes, parts)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, X]."""
        return self.model(tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the rows of `tokens`, [..., X]. They are the last matrix too: a row times hidden is a logit."""
        return self.model.embed_tokens(tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, V]."""
        return F.linear(self(tokens), self.model.embed_tokens.weight)

    @property
    def balance(self) -> Tensor:
        """The mean loss of uneven experts; 0 without experts."""
        losses = [one.balance for one in self.modules() if isinstance(one, Experts)]
        return torch.stack(losses).mean() if losses else torch.tensor(0.0)
