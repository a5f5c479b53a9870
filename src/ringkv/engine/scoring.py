"""Scoring: the log-probabilities of a prompt's tokens under the model."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ringkv.base.events import TokenLogprob
from ringkv.kernels.sampling.tiers import scores

ROWS = 128  # tokens whose logits are computed at once


def token_logprobs(
    hidden: Tensor, following: Sequence[int], wanted: int, logits: Callable[[Tensor], Tensor]
) -> Iterator[TokenLogprob]:
    """Yield the log-probability of the token after each row of hidden states [rows, hidden], with `wanted` top tokens.

    logits: returns [rows, V] of such rows. following: the next tokens, one fewer than rows at the prompt's end.
    """
    hidden = hidden[: len(following)]
    tokens = torch.tensor(following, device=hidden.device)
    for rows, ids in zip(hidden.split(ROWS), tokens.split(ROWS), strict=True):
        for logprob, top, values in zip(*(one.tolist() for one in scores(logits(rows), ids)), strict=True):
            yield TokenLogprob(logprob, tuple(zip(top[:wanted], values[:wanted], strict=True)))
