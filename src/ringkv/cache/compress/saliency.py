"""saliency: the attention that each token of a prompt gets, by which zipcache gives it 4 or 2 bits.

ZipCache (arXiv 2405.14256, section 5) sums the attention of some queries, its probes, and divides it by the number of
probes that see the token, or the last tokens would seem to matter least. Its probes are 10% of the prompt, the last 5%
and 5% at random; ours are the last queries, which staging has for the selectors.

L layers, H key-value heads, G query heads each, W last queries, n prompt tokens.
"""

import torch
from torch import Tensor

from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.kernels.window_votes import window_votes


def saliency(prompt: StagedPrompt) -> Tensor:
    """Return float32 [L, H, n]: the mean attention that a token gets from the probes that see it, and query heads."""
    n = prompt.keys.shape[2]
    layers = zip(prompt.q, prompt.keys, strict=True)
    return torch.stack(
        [prompt.reduction.mean(window_votes(q, keys, prompt.scale) / q.shape[1]) for q, keys in layers]
    ) / seen_by(n, prompt.q[0].shape[2]).to(prompt.keys.device)


def seen_by(n: int, probes: int) -> Tensor:
    """Return int64 [n], how many of the last queries see each token."""
    return torch.arange(n, 0, -1).clamp(max=probes)
