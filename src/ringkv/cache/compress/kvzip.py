"""KVzip: keeps the tokens that the model attends to when it repeats the prompt, independent of later questions.

L layers, H key-value heads, G query heads each, w queries of a piece, n prompt tokens, D head_dim.
Source: KVzip (arXiv 2505.23416): the prompt is prefilled a second time after itself, in chunks. A token's vote is the
highest attention weight that any query of its own chunk's repetition gives it. Words ask for each repetition, and their
queries vote too. A pass repeats at most 64 tokens, so it costs more than the prompt's prefill. It suits documents that
serve many questions. No later question changes a vote. So entries of a conversation keep theirs, and only tokens
without a vote are repeated.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ringkv.base.errors import PromptTooLong
from ringkv.base.repeat_words import RepeatWords
from ringkv.base.selectors import KVzip
from ringkv.cache.compress.staged_prompt import StagedPrompt

CHUNK = 2048  # tokens repeated at a time
LEAD = 8  # tokens before a chunk that are repeated too, as context for the chunk
FIRST = 4  # leading prompt tokens that every query attends to as well


def votes(prompt: StagedPrompt, low: int, high: int, selector: KVzip) -> Iterator[Tensor | None]:
    """Yield each token's highest attention weight among the queries that repeat its chunk.

    Raises PromptTooLong if no token can be repeated after the prompt's end.
    """
    layers, heads, n, _ = prompt.keys.shape
    size = min(CHUNK, prompt.repeat_limit - beside(prompt.words()))
    if size < 1:
        raise PromptTooLong(
            f"kv_select kvzip prefills a prompt again after its end, and {n:,} tokens leave no room for that; "
            "shorten the conversation, or choose another kv_select"
        )
    highest, known = torch.zeros(layers, heads, n, device=prompt.keys.device), 0
    if prompt.known is not None:
        known = prompt.known.shape[2]
        highest[..., :known] = prompt.known
    first = _first_keys(prompt)
    for start in range(known, n, size):
        stop = min(start + size, n)
        for q, repeated in prompt.repeat(max(0, start - LEAD), stop):
            for layer in range(layers):
                keys = prompt.keys[layer]
                visible = torch.cat((first[layer], keys[:, start:stop], repeated[layer]), 1)
                weights = _weights(q[layer], visible, prompt.scale)[..., FIRST : FIRST + stop - start].amax((1, 2))
                highest[layer, :, start:stop] = torch.maximum(highest[layer, :, start:stop], weights)
            yield None
    for of_layer in highest:
        yield prompt.reduction.maximum(of_layer[:, low:high])


def beside(words: RepeatWords) -> int:
    """Return how many tokens a repetition has beside those of its chunk, at most."""
    return LEAD + words.longest


def _first_keys(prompt: StagedPrompt) -> Tensor:
    """Return [L, H, FIRST, D], the first keys of each head."""
    if prompt.begins is None:
        return prompt.keys[:, :, :FIRST]
    places = (prompt.begins[..., None] + torch.arange(FIRST)).clamp(max=prompt.keys.shape[2] - 1).to(prompt.keys.device)
    return prompt.keys.gather(2, places[..., None].expand(-1, -1, -1, prompt.keys.shape[3]))


def _weights(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return float32 [H, G, w, n] from q [H, G, w, D] and keys [H, n, D]. The last w keys are masked causally."""
    width = q.shape[2]
    scores = q.float() @ keys[:, None].float().transpose(-1, -2) * scale
    future = torch.ones(width, width, dtype=torch.bool, device=q.device).triu(1)
    scores[..., -width:].masked_fill_(future, float("-inf"))
    weights: Tensor = scores.softmax(-1)
    return weights
