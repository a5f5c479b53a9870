"""The sampling graphs of an engine: C++ operators if they are loaded, else one compiled graph for each tier.

B slots, N drafts per slot, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from ringkv.base.sampling import SamplerTier
from ringkv.engine.sampling.state import SamplingState
from ringkv.graphs.graph import Backend, Graph, StaticFunction
from ringkv.kernels.library import is_native
from ringkv.kernels.sampling import operators
from ringkv.kernels.sampling.tiers import DRAFT_FIELDS, DRAFT_SAMPLERS, SAMPLERS, Inputs

Samplers = Mapping[SamplerTier, Callable[[Inputs], tuple[Tensor, ...]]]


def samplers(backend: Backend, slots: int, vocab: int, device: torch.device) -> Mapping[SamplerTier, Graph]:
    """Return the graph of each tier, of the tensors of `Inputs`."""
    if is_compiled(device):
        return _compiled(backend, SAMPLERS, "", list(_example(slots, vocab, device)))
    return {tier: _scored if tier >= SamplerTier.ADJUSTED else _sampled for tier in SamplerTier}


def draft_samplers(backend: Backend, rows: int, vocab: int, device: torch.device) -> Mapping[SamplerTier, Graph]:
    """Return the graphs for all drafts of all slots, of the tensors of `DRAFT_FIELDS`."""
    if is_compiled(device):
        return _compiled(backend, DRAFT_SAMPLERS, "-drafts", list(_example(rows, vocab, device)[: len(DRAFT_FIELDS)]))
    return dict.fromkeys(DRAFT_SAMPLERS, _sampled)


def is_compiled(device: torch.device) -> bool:
    """Return whether a tier is a graph of its own, rather than the C++ operator that serves all of them."""
    return device.type != "cpu" or not is_native("sample")


def _compiled(backend: Backend, of: Samplers, suffix: str, example: list[Tensor]) -> Mapping[SamplerTier, Graph]:
    functions = {
        tier: StaticFunction(partial(_sample, sampler), f"sample {tier.name}{suffix}") for tier, sampler in of.items()
    }
    return {tier: backend.make(f"sample-{tier.name.lower()}{suffix}", functions[tier], example) for tier in of}


def _sample(sampler: Callable[[Inputs], tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    unread = [tensors[0]] * (len(Inputs._fields) - len(tensors))
    return sampler(Inputs(*tensors, *unread))


def _sampled(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return (operators.sample(*tensors[: len(Inputs._fields) - 1]),)


def _scored(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Sample, and score if any slot reports log-probabilities."""
    inputs = Inputs(*tensors)
    (tokens,) = _sampled(tensors)
    if not inputs.scored.any():
        return (tokens,)
    return tokens, *operators.top_logprobs(inputs.logits, tokens, inputs.scored)


def _example(rows: int, vocab: int, device: torch.device) -> Inputs:
    position, forced = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
    logits = torch.zeros(rows, vocab, device=device)
    return SamplingState.neutral(rows, vocab, device).inputs(logits, forced, position)
