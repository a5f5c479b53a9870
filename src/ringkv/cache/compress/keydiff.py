"""KeyDiff: keeps the keys that differ most from all others. It uses no queries.

H key-value heads, n prompt tokens, D head_dim.
Source: KeyDiff (arXiv 2504.15364), section 3: negative cosine similarity to the mean of the unit keys.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.selectors import KeyDiff
from ringkv.cache.compress.staged_prompt import StagedPrompt, pieces

SHORTEST = 1e-12  # shorter vectors count as so long, as in `F.normalize`
ELEMENTS = 32  # of a vector: torch adds so many columns in the same order whether there are others or not


def votes(prompt: StagedPrompt, low: int, high: int, selector: KeyDiff) -> Iterator[Tensor]:
    """Yield 1 minus the cosine between each key and the prompt's mean direction, from 0 to 2."""
    for keys in prompt.keys:
        yield differences(keys, low, high)


def differences(vectors: Tensor, low: int, high: int) -> Tensor:
    """Return float32 [H, high - low], 1 minus the cosine between vectors [H, n, D] and their mean direction."""
    anchor = F.normalize(torch.stack([_mean_of_unit(head) for head in vectors]), dim=-1)[:, None]
    unit = (F.normalize(some.float(), dim=-1) for some in pieces(vectors[:, low:high]))
    return torch.cat([1 - (some * anchor).sum(-1).clamp(max=1) for some in unit], 1)


def _mean_of_unit(vectors: Tensor) -> Tensor:
    """Return float32 [D], the mean of vectors [n, D] that are scaled to length 1.

    It has some elements at a time, not some vectors, so that the order of its sums does not depend on the pieces.
    """
    norms = torch.cat([some.float().norm(dim=-1) for some in pieces(vectors[None])], 1)[0].clamp(min=SHORTEST)
    return torch.cat([(elements.float() / norms[:, None]).mean(0) for elements in vectors.split(ELEMENTS, -1)])
