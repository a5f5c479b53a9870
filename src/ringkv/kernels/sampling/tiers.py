"""Sampling tiers in plain torch: a function for each `SamplerTier`, so that random numbers and sums over the vocabulary
are computed only if a request needs them.

B slots, V vocabulary. With neutral parameters all tiers sample the same token from the same logits, so a request's
tokens do not change if a neighbour needs a higher tier.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.sampling import SamplerTier, SamplingParams
from ringkv.kernels.sampling.noise import gumbel
from ringkv.kernels.sampling.truncate import truncate

TOP = SamplingParams.MAX_LOGPROBS
BAD = -1  # the token of a slot whose logits were not finite
FREE = -1  # the tier of a slot without a request
MAX_TOP_K = 2**24  # integers up to this are exact in float32; larger than any vocabulary
_NONE = float("-inf")


class Inputs(NamedTuple):
    """The arguments of every sampling graph, in this order; a tier reads the fields that it needs."""

    logits: Tensor  # float32 [B, V]
    forced: Tensor  # int64 [B], a token to take instead of sampling, or -1
    position: Tensor  # int64 [B], of the token to sample
    seed: Tensor  # int64 [B]
    temperature: Tensor  # float32 [B], 0 is greedy
    tier: Tensor  # int32 [B], the tier that each slot needs; FREE if it has no request
    params: Tensor  # float32 [B, 8], in the order of `params_of`
    allowed: Tensor  # int32 [B, ceil(V / 32)], a bit for each token that a grammar allows, lowest first
    bias: Tensor  # float32 [B, V]
    in_prompt: Tensor  # bool [B, V]
    in_output: Tensor  # int32 [B, V], how often each token was sampled
    ends: Tensor  # bool [B, V], the tokens that min_tokens forbids
    scored: Tensor  # bool [B], whether log-probabilities are reported


DRAFT_FIELDS = Inputs._fields[:7]
"""The fields that `DRAFT_SAMPLERS` read."""


def params_of(params: SamplingParams) -> tuple[float, ...]:
    """Return one slot's row of `Inputs.params`."""
    p = params
    return (
        float(min(max(p.top_k, 0), MAX_TOP_K)),
        p.top_p,
        p.min_p,
        p.repetition_penalty,
        p.presence_penalty,
        p.frequency_penalty,
        float(p.min_tokens),
        float(bool(p.logit_bias)),
    )


def greedy(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the top tokens: (int64 tokens [B],)."""
    return (_checked(inputs.logits.argmax(-1), inputs),)


def temperature(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the top token if the temperature is 0, else a sample at that temperature: (tokens [B],)."""
    return (_checked(_sample(inputs.logits, inputs), inputs),)


def grammar(inputs: Inputs) -> tuple[Tensor, ...]:
    """Sample as `temperature` does among the tokens that a grammar allows: (tokens [B],)."""
    return (_checked(_sample(_allow(inputs), inputs), inputs),)


def adjusted(inputs: Inputs) -> tuple[Tensor, ...]:
    """Sample as `grammar` does after bias, penalties and min_tokens.

    Returns (tokens [B], their logprobs [B], top ids [B, TOP], their logprobs [B, TOP]).
    """
    return _scored(_adjust(_allow(inputs), inputs), inputs)


def truncated(inputs: Inputs) -> tuple[Tensor, ...]:
    """Sample as `adjusted` does after top_k, top_p and min_p."""
    logits = _adjust(_allow(inputs), inputs)
    return _scored(truncate(logits, inputs.temperature, *inputs.params[:, :3, None].unbind(1)), inputs)


SAMPLERS: dict[SamplerTier, Callable[[Inputs], tuple[Tensor, ...]]] = {
    SamplerTier.GREEDY: greedy,
    SamplerTier.TEMPERATURE: temperature,
    SamplerTier.GRAMMAR: grammar,
    SamplerTier.ADJUSTED: adjusted,
    SamplerTier.TRUNCATED: truncated,
}


def truncated_draft(inputs: Inputs) -> tuple[Tensor, ...]:
    """Sample as `truncated` does if nothing adjusts the logits: (tokens [B],)."""
    limits = inputs.params[:, :3, None].unbind(1)
    return (_checked(_sample(truncate(inputs.logits, inputs.temperature, *limits), inputs), inputs),)


DRAFT_SAMPLERS: dict[SamplerTier, Callable[[Inputs], tuple[Tensor, ...]]] = {
    SamplerTier.GREEDY: greedy,
    SamplerTier.TEMPERATURE: temperature,
    SamplerTier.TRUNCATED: truncated_draft,
}
"""The samplers of requests that take drafts."""


def scores(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probabilities of these tokens, the top ids and theirs, under the unmodified logits.

    `sum` adds in pairs. `log_softmax` does not on a CPU with AVX2, so its rounding error grows with the vocabulary.
    """
    shifted = logits - logits.amax(-1, keepdim=True)
    logprobs = shifted - shifted.exp().sum(-1, keepdim=True).log()
    top, ids = logprobs.topk(min(TOP, logits.shape[-1]))
    return logprobs.gather(1, tokens.clamp(min=0)[:, None])[:, 0], ids, top


def _allow(inputs: Inputs) -> Tensor:
    logits = inputs.logits
    bits = inputs.allowed[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device)
    return logits.masked_fill((bits & 1).flatten(1)[:, : logits.shape[1]] == 0, _NONE)


def _adjust(logits: Tensor, inputs: Inputs) -> Tensor:
    """Apply bias, min_tokens, repetition, frequency and presence penalties, in vLLM's order."""
    repetition, presence, frequency, min_tokens = (inputs.params[:, i, None] for i in range(3, 7))
    in_output = inputs.in_output
    logits = logits + inputs.bias
    logits = logits.masked_fill(inputs.ends & (in_output.sum(-1, keepdim=True) < min_tokens), _NONE)
    seen = inputs.in_prompt | (in_output > 0)
    logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    return logits - frequency * in_output - presence * (in_output > 0)


def _sample(logits: Tensor, inputs: Inputs) -> Tensor:
    """Return int64 [B]: the argmax if the temperature is 0, else a sample by the Gumbel-max trick."""
    warm = inputs.temperature[:, None] > 0
    scaled = logits / torch.where(warm, inputs.temperature[:, None], 1.0)
    return torch.where(warm, scaled + gumbel(inputs.seed, inputs.position, logits.shape[1]), logits).argmax(-1)


def _scored(logits: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
    """Sample from `logits`; the log-probabilities are those of the unmodified logits."""
    tokens = _checked(_sample(logits, inputs), inputs)
    return tokens, *scores(inputs.logits, tokens)


def _checked(tokens: Tensor, inputs: Inputs) -> Tensor:
    """Return the forced token if there is one, and BAD if the logits contain a NaN or +inf, or are all -inf."""
    tokens = torch.where(inputs.forced >= 0, inputs.forced, tokens)
    return torch.where(inputs.logits.amax(-1).isfinite(), tokens, BAD)
