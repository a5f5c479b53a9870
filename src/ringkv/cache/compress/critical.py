"""critical: votes are weighed by what a token's value adds to the layer's output.

L layers, H key-value heads, G query heads each, n candidates, K selected tokens of a head, D head_dim.
Source: CriticalKV (arXiv 2502.03805). Half of a head's tokens are selected by votes alone, and half by votes times
||W v||_1: v is the token's value, W the part of the output projection that the query head has. Query heads that share a
value are averaged.
"""

import torch
from torch import Tensor

from ringkv.cache.compress.by_head import top_of_each
from ringkv.cache.compress.staged_prompt import StagedPrompt

BY_VOTES = 0.5
"""Share of a head's selected tokens that votes alone select (CriticalKV, algorithm 1)."""
LEAST = 1e-4
"""Added to every vote, so that norms order tokens without votes."""
PIECE = 1024  # tokens whose products are in memory together


def weighed(votes: Tensor, norms: Tensor, counts: Tensor) -> Tensor:
    """Return votes [L, H, n] by which each head's `counts` [L, H] tokens are selected; infinite for its first half."""
    sure = top_of_each(votes, (BY_VOTES * counts).long()) | votes.isinf()
    return ((votes + LEAST) * norms).masked_fill(sure, float("inf"))


def output_norms(prompt: StagedPrompt, low: int, high: int, joined: bool) -> Tensor:
    """Return float32 [L, H, high - low], ||W v||_1 of tokens low .. high-1; joined: averaged over a layer's heads."""
    assert prompt.output is not None
    each = enumerate(prompt.values[:, :, low:high])
    norms = (_of_layer(values, prompt.output(layer).to(values.dtype)) for layer, values in each)
    if joined:
        return torch.stack([prompt.reduction.mean_of_all(one.mean(0)).expand_as(one) for one in norms])
    return torch.stack([prompt.reduction.mean(one) for one in norms])


def _of_layer(values: Tensor, output: Tensor) -> Tensor:
    """Return float32 [H, n] from values [H, n, D] and output [H, G, D, hidden]."""
    pieces = [
        torch.stack([(piece @ one).abs().sum(-1, dtype=torch.float32) for one in output.unbind(1)]).mean(0)
        for piece in values.split(PIECE, dim=1)
    ]
    return torch.cat(pieces, 1)
