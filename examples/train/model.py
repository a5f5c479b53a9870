"""model: a decoder in plain PyTorch, whose parameters have the names of a Hugging Face checkpoint.

B sequences, T tokens, X hidden elements, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.train.attention import GroupedAttention, Pair
from examples.train.feed_forward import Experts, FeedForward
from examples.train.sizes import Sizes


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
    """Logits are a separate call, because the vocabulary projection costs more than all layers."""

    def __init__(self, sizes: Sizes, parts: Parts) -> None:
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.model = Backbone(sizes, parts)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, X]."""
        return self.model(tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of `tokens`, [..., X]. The vocabulary projection is tied to them."""
        return self.model.embed_tokens(tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, V]."""
        return F.linear(self(tokens), self.model.embed_tokens.weight)

    @property
    def balance(self) -> Tensor:
        """The mean load-balancing loss of experts; 0 without experts."""
        losses = [one.balance for one in self.modules() if isinstance(one, Experts)]
        return torch.stack(losses).mean() if losses else torch.tensor(0.0)
