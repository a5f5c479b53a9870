"""feed_forward: a gated feed-forward, and a mixture of several."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.train.sizes import Sizes, linear


class FeedForward(nn.Module):
    """A gated feed-forward (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = linear(sizes.intermediate, sizes.hidden)
        self.up_proj = linear(sizes.intermediate, sizes.hidden)
        self.down_proj = linear(sizes.hidden, sizes.intermediate)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Expert(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1, self.w3 = (linear(sizes.intermediate, sizes.hidden) for _ in range(2))
        self.w2 = linear(sizes.hidden, sizes.intermediate)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """A mixture of experts (Mixtral, arXiv 2401.04088): each token takes its `top_k` experts.

    `balance` is the last forward's load-balancing loss (Switch Transformer, arXiv 2101.03961), 1 if their use is even.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.top_k = sizes.top_k
        self.gate = linear(sizes.experts, sizes.hidden)
        self.experts = nn.ModuleList(Expert(sizes) for _ in range(sizes.experts))
        self.balance = torch.tensor(0.0)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        scores = self.gate(flat).float().softmax(-1)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        self.balance = self._balance(scores, chosen)
        total = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, rank = (chosen == index).nonzero(as_tuple=True)
            result = expert(flat[rows]) * weights[rows, rank, None]
            total = total.index_add(0, rows, result.to(total.dtype))
        return total.view_as(x)

    def _balance(self, scores: Tensor, chosen: Tensor) -> Tensor:
        experts = scores.shape[-1]
        used = F.one_hot(chosen, experts).float().mean((0, 1))
        return experts * (used * scores.mean(0)).sum()
