"""initialise: weights near induction heads (arXiv 2209.11895), which take hours to form from random weights.

In the first half of the layers, head h attends to the token h + 1 before, and the first two heads copy it to a channel
of their own. In the second half, heads attend to tokens with the same channel, and copy them: queries
equal keys, and the output is the transposed values (Mimetic Initialization, arXiv 2305.09828). So a name finds the
number that follows the same name.

X hidden elements, R rotated ones of a head, C elements of the channel.
"""

from typing import Any

import torch
from torch import Tensor, nn

from examples.train.model import Decoder
from examples.train.rotary import rotate
from examples.train.sizes import Sizes

LOGIT = 3.0  # a token's logit for itself begins near LOGIT * sqrt(X)
NOISE = 0.3  # scale of the random part of queries and keys
SHARP = 4.0  # a rotated pair's part of a positional head's score
COPIED, MATCH = 2.0, 1.0  # scale of what is copied to the channel, and of the keys that read it


@torch.no_grad()
def initialise(decoder: Decoder, sizes: Sizes) -> None:
    """Change the weights in place."""
    for name, weight in decoder.named_parameters():
        if weight.ndim == 2:
            small = (2 * sizes.layers) ** -0.5 if name.endswith(("down_proj.weight", "w2.weight")) else 1.0
            nn.init.normal_(weight, std=small * weight.shape[-1] ** -0.5)
    shared = _embeddings(decoder.model.embed_tokens.weight)
    decoder.model.norm.weight.fill_(LOGIT * sizes.hidden**-0.5)
    channel = torch.linalg.qr(torch.randn(sizes.hidden, sizes.head_dim)).Q
    layers = [layer.self_attn for layer in decoder.model.layers]
    first, second = layers[: len(layers) // 2], layers[len(layers) // 2 :]
    for attention in first:
        _attend_before(attention, first[0], shared, channel, sizes)
    for attention in second:
        _attend_to_same(attention, second[0], shared, channel)


def _embeddings(weight: Tensor) -> Tensor:
    """Give all rows a part in common, half of their squares. Returns its direction, [X]."""
    direction = nn.functional.normalize(torch.randn(weight.shape[-1]), dim=0)
    weight.normal_().add_(direction * weight.shape[-1] ** 0.5).mul_(0.5**0.5)
    return direction


def _prepare(attention: Any, shared: Tensor) -> None:
    """Remove the part that all tokens share from keys and values, and most of the content from scores."""
    attention.group_values()
    for matrix in attention.sources:
        matrix.weight -= torch.outer(matrix.weight @ shared, shared)
    attention.rotary_keys.mul_(NOISE)


def _attend_before(attention: Any, first: Any, shared: Tensor, channel: Tensor, sizes: Sizes) -> None:
    """Make keys from what all tokens share, and queries the same, rotated by each head's distance."""
    rotated = attention.rotary_queries.shape[1]
    key = torch.zeros(rotated)
    key[: rotated // 2] = (SHARP * sizes.head_dim**0.5) ** 0.5
    length = (sizes.hidden / 2) ** 0.5  # of the part in common, after a norm
    before = torch.arange(1, sizes.heads + 1)
    queries = rotate(key.expand(1, sizes.heads + 1, rotated), sizes.theta, -1.0)[0, before]  # [H, R]
    attention.q_proj.weight.mul_(NOISE)
    attention.rotary_queries.add_(queries[:, :, None] * shared / length)
    if attention is first:
        _prepare(attention, shared)
        attention.rotary_keys.add_(key[:, None] * shared / length)
    elif attention.has_keys:
        attention.load_state_dict(first.state_dict())
    attention.o_proj.weight.mul_(NOISE)
    attention.o_proj.weight[:, : 2 * sizes.head_dim] = COPIED * torch.cat((channel, channel), dim=1)


def _attend_to_same(attention: Any, first: Any, shared: Tensor, channel: Tensor) -> None:
    """Make keys and queries from the channel, in the slow half of the rotated pairs."""
    if not attention.has_keys:
        attention.load_state_dict(first.state_dict(), strict=False)
        return
    _prepare(attention, shared)
    rotated = attention.rotary_keys.shape[1]
    attention.q_proj.weight.mul_(NOISE)
    read = torch.randn(rotated, channel.shape[1]) * MATCH * channel.shape[1] ** -0.5
    read.unflatten(0, (2, -1))[:, : rotated // 4] = 0.0
    attention.rotary_keys.add_(read @ channel.T)
    attention.rotary_queries.add_(read @ channel.T)
    attention.o_proj.weight.copy_(attention.maps()[1].T)
