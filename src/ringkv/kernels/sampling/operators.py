"""sample, top_logprobs: the sampling operators. Each row computes only what its request needs.

B slots, V vocabulary, TOP top tokens.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import register
from ringkv.kernels.sampling import tiers
from ringkv.kernels.sampling.tiers import BAD, FREE, Inputs


def sample(*inputs: Tensor | None) -> Tensor:
    """Sample int64 [B]: the next token of each slot, BAD if its logits are not finite or its tier is FREE.

    inputs: the fields of `Inputs` except `scored`. All from `allowed` on may be absent if all requests take drafts.
    """
    tokens: Tensor = torch.ops.ringkv.sample(*inputs)
    return tokens


def top_logprobs(logits: Tensor, tokens: Tensor, scored: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probabilities [B] of these tokens under the model, and the top ids and theirs [B, TOP].

    scored bool [B]: rows that are False have undefined results.
    """
    logprobs, ids, top = torch.ops.ringkv.top_logprobs(logits, tokens, scored)
    return logprobs, ids, top


def reference(*inputs: Tensor | None) -> Tensor:
    """Sample in plain torch, with the highest tier that the given planes allow: the tokens are the same in all."""
    given = [tensor for tensor in inputs if tensor is not None]
    unread = [given[0]] * (len(Inputs._fields) - len(given))
    sampler = tiers.truncated_draft if len(given) == len(tiers.DRAFT_FIELDS) else tiers.truncated
    rows = Inputs(*given, *unread)
    return torch.where(rows.tier == FREE, BAD, sampler(rows)[0])


def scores_reference(logits: Tensor, tokens: Tensor, scored: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute every row's log-probabilities in plain torch."""
    return tiers.scores(logits, tokens)


register("sample", reference)
register("top_logprobs", scores_reference)
