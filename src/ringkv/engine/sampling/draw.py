"""The sampling graphs, after the forward graph: one for each `Effort`, so that nobody pays for random numbers or
sums over the vocabulary without need.

B slots, V vocabulary. With neutral knobs all draw the same token from the same logits, so a request's tokens do not
change when a neighbour asks for more.
"""

from inspect import signature

import torch
from torch import Tensor

from ringkv.base.sampling import Effort, SamplingParams
from ringkv.engine.sampling.noise import gumbel
from ringkv.engine.sampling.truncate import truncate
from ringkv.graphs.graph import Function

TOP = SamplingParams.MAX_LOGPROBS
BAD = -1  # the token of a slot whose logits were not finite
MANY = 2**24  # as many as float32 counts, and more than a vocabulary has
_NONE = float("-inf")


def greedy(logits: Tensor, forced: Tensor) -> tuple[Tensor, ...]:
    """The likeliest tokens: (int64 tokens [B],).

    logits float32 [B, V]; forced int64 [B], a token to take instead of the draw, or -1.
    """
    return (_checked(logits.argmax(-1), logits, forced),)


def plain(logits: Tensor, forced: Tensor, seed: Tensor, position: Tensor, temperature: Tensor) -> tuple[Tensor, ...]:
    """The same where temperature is 0, else a draw at that temperature; seed, position int64 [B]."""
    return (_checked(_draw(logits, seed, position, temperature), logits, forced),)


def guided(
    logits: Tensor, forced: Tensor, seed: Tensor, position: Tensor, temperature: Tensor, allowed: Tensor
) -> tuple[Tensor, ...]:
    """The same among the tokens that a grammar allows: allowed int32 [B, ceil(V / 32)], a bit each, lowest first."""
    return (_checked(_draw(_allow(logits, allowed), seed, position, temperature), logits, forced),)


def adjusted(
    logits: Tensor,
    forced: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: Tensor,
    allowed: Tensor,
    knobs: Tensor,
    bias: Tensor,
    in_prompt: Tensor,
    in_output: Tensor,
    ends: Tensor,
) -> tuple[Tensor, ...]:
    """All of SamplingParams but the cuts: (tokens [B], logprobs [B], the TOP likeliest ids [B, TOP], their logprobs).

    knobs float32 [B, 7] in the order of `knobs_of`; bias float32 [B, V]; in_prompt bool [B, V]; in_output int32 [B, V],
    how often each token was drawn; ends bool [B, V], the tokens that min_tokens forbids.
    """
    wanted = _adjust(_allow(logits, allowed), knobs, bias, in_prompt, in_output, ends)
    tokens = _checked(_draw(wanted, seed, position, temperature), logits, forced)
    return tokens, *scores(logits, tokens)


def cut(
    logits: Tensor,
    forced: Tensor,
    seed: Tensor,
    position: Tensor,
    temperature: Tensor,
    allowed: Tensor,
    knobs: Tensor,
    bias: Tensor,
    in_prompt: Tensor,
    in_output: Tensor,
    ends: Tensor,
) -> tuple[Tensor, ...]:
    """The same, then top_k, top_p and min_p."""
    wanted = _adjust(_allow(logits, allowed), knobs, bias, in_prompt, in_output, ends)
    kept = truncate(wanted, temperature, *knobs[:, :3, None].unbind(1))
    tokens = _checked(_draw(kept, seed, position, temperature), logits, forced)
    return tokens, *scores(logits, tokens)


def knobs_of(params: SamplingParams) -> tuple[float, ...]:
    """One slot's row of `knobs`."""
    p = params
    return (
        float(min(max(p.top_k, 0), MANY)),
        p.top_p,
        p.min_p,
        p.repetition_penalty,
        p.presence_penalty,
        p.frequency_penalty,
        float(p.min_tokens),
    )


def _allow(logits: Tensor, allowed: Tensor) -> Tensor:
    bits = allowed[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device)
    return logits.masked_fill((bits & 1).flatten(1)[:, : logits.shape[1]] == 0, _NONE)


def _adjust(logits: Tensor, knobs: Tensor, bias: Tensor, in_prompt: Tensor, in_output: Tensor, ends: Tensor) -> Tensor:
    """In vLLM's order: bias, forbidden ends, repetition, frequency and presence."""
    repetition, presence, frequency, min_tokens = (knobs[:, i, None] for i in range(3, 7))
    logits = logits + bias
    logits = logits.masked_fill(ends & (in_output.sum(-1, keepdim=True) < min_tokens), _NONE)
    seen = in_prompt | (in_output > 0)
    logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    return logits - frequency * in_output - presence * (in_output > 0)


def scores(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of these tokens, and the likeliest ids with theirs, under the model itself."""
    logprobs = logits.log_softmax(-1)
    top, ids = logprobs.topk(min(TOP, logits.shape[-1]))
    return logprobs.gather(1, tokens.clamp(min=0)[:, None])[:, 0], ids, top


def _draw(logits: Tensor, seed: Tensor, position: Tensor, temperature: Tensor) -> Tensor:
    """int64 [B]: the argmax where temperature is 0, else a draw by the Gumbel-max trick."""
    warm = temperature[:, None] > 0
    scaled = logits / torch.where(warm, temperature[:, None], 1.0)
    return torch.where(warm, scaled + gumbel(seed, position, logits.shape[1]), logits).argmax(-1)


def _checked(tokens: Tensor, logits: Tensor, forced: Tensor) -> Tensor:
    """The forced token where there is one; BAD where the logits hold a NaN, or nothing finite."""
    tokens = torch.where(forced >= 0, forced, tokens)
    return torch.where(logits.amax(-1).isfinite(), tokens, BAD)


GRAPHS: dict[Effort, Function] = {
    Effort.GREEDY: greedy,
    Effort.PLAIN: plain,
    Effort.GUIDED: guided,
    Effort.ADJUSTED: adjusted,
    Effort.CUT: cut,
}


ARITY: dict[Effort, int] = {effort: len(signature(graph).parameters) for effort, graph in GRAPHS.items()}
"""How many of `cut`'s arguments each effort's graph takes: what a lesser one does, then more."""
