"""TOVA: the prompt's last query votes, and all heads of a layer keep the same tokens.

L layers, H key-value heads, G query heads each, n prompt tokens.
Source: TOVA (arXiv 2401.06104), which evicts at every step; here it selects once, at the end of the prompt.
"""

from collections.abc import Iterator

from torch import Tensor

from ringkv.base.selectors import TOVA
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.kernels.window_votes import window_votes


def votes(prompt: StagedPrompt, low: int, high: int, selector: TOVA) -> Iterator[Tensor]:
    """Yield the last query's attention, averaged over the layer's H * G query heads."""
    for q, keys in zip(prompt.q, prompt.keys, strict=True):
        attention = window_votes(q[:, :, -1:].contiguous(), keys, prompt.scale)[:, low:high]
        yield prompt.reduction.mean_of_all(attention.mean(0) / q.shape[1]).expand(len(keys), -1)
