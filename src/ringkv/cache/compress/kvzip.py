"""KVzip: what a model looks at when it says the prompt again, whatever will be asked about it.

L layers, H key-value heads, G query heads each, w queries of a piece, n prompt tokens, D head_dim.
Source: KVzip (arXiv 2505.23416): the prompt is read a second time after itself, in chunks; a token is worth the most
attention that any query of its own chunk's repetition gives it. The paper asks for the repetition in words; here the
tokens alone follow. It costs about as much as the prompt did, and serves documents that are asked many questions.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ringkv.base.errors import PromptTooLong
from ringkv.base.selectors import KVzip
from ringkv.cache.compress.prompt import Prompt

CHUNK = 2048  # tokens that are repeated at a time
LEAD = 8  # tokens before a chunk that are repeated too, so that it is clear where the repetition goes on
FIRST = 4  # tokens that every query sees besides


def votes(prompt: Prompt, low: int, high: int, selector: KVzip) -> Tensor:
    """Each token's highest weight among the queries that repeat it.

    Raises PromptTooLong where nothing of it can be repeated after its end.
    """
    layers, heads, n, _ = prompt.keys.shape
    size = min(CHUNK, prompt.room - LEAD)
    if size < 1:
        raise PromptTooLong(
            f"kv_select kvzip reads a prompt again after its end, and {n:,} tokens leave no room for that; "
            "start with a larger prompt_tokens"
        )
    most = torch.zeros(layers, heads, n, device=prompt.keys.device)
    for start, stop in _chunks(n, size):
        for q, own in prompt.follow(max(0, start - LEAD), stop):
            for layer in range(layers):
                seen = torch.cat((prompt.keys[layer, :, :FIRST], prompt.keys[layer, :, start:stop], own[layer]), 1)
                got = _weights(q[layer], seen, prompt.scale)[..., FIRST : FIRST + stop - start].amax((1, 2))
                most[layer, :, start:stop] = torch.maximum(most[layer, :, start:stop], got)
    return most[:, :, low:high].reshape(layers * heads, -1)


def _chunks(n: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + size, n)) for start in range(0, n, size))


def _weights(q: Tensor, seen: Tensor, scale: float) -> Tensor:
    """float32 [H, G, w, keys] of q [H, G, w, D]; the last w of seen [H, keys, D] are the queries' own, causally."""
    width = q.shape[2]
    scores = q.float() @ seen[:, None].float().transpose(-1, -2) * scale
    future = torch.ones(width, width, dtype=torch.bool, device=q.device).triu(1)
    scores[..., -width:].masked_fill_(future, float("-inf"))
    weights: Tensor = scores.softmax(-1)
    return weights
