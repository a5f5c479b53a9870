"""Block of experts beside a dense feed-forward (`parallel_experts`). N tokens."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.experts import experts
from ringkv.kernels.linear import gated, linear
from ringkv.kernels.norm import RMSNorm, wide_norm
from ringkv.kernels.route import route
from ringkv.models.layer import Layer
from ringkv.models.parallel_experts import ParallelExperts


def parallel_experts(layer: Layer, x: Tensor, weights: Mapping[str, Tensor], residual: Tensor | None) -> Tensor:
    """Return the sum of both feed-forwards of x [N, hidden], each normalised."""
    assert residual is None, "a norm follows the sum"
    dense, sparse = _dense(layer, x, weights), _experts(layer, x, weights)
    both = _normed(layer, dense, weights["dense_out_norm"]) + _normed(layer, sparse, weights["experts_out_norm"])
    return both.to(x.dtype)


def _normed(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    return wide_norm(x, weight, layer.norm.eps, layer.norm.offset)


def _dense(layer: Layer, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    norm, before = layer.norm, weights["feed_forward_norm"]
    activation = layer.feed_forward.activation
    return linear(gated(x, weights["gate_up"], None, before, norm.eps, activation, norm.offset), weights["down"])


def _experts(layer: Layer, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    block, norm = layer.feed_forward, layer.norm
    assert isinstance(block, ParallelExperts)
    logits = linear(x, weights["router"], None, weights["router_norm"], norm.eps, dtype=torch.float32)
    found = route(logits * x.shape[-1] ** -0.5, None, block.router)
    return experts(
        x,
        found.experts,
        found.weights * weights["router_factors"][found.experts],
        ExpertStack(weights["experts_gate_up"], weights["experts_down"], block.router.experts, block.activation),
        torch.zeros_like(x),
        RMSNorm(weights["experts_norm"], norm.eps, norm.offset),
    )
