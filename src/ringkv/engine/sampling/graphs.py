"""The sampling graphs of an engine: C++ operators if they are loaded, else one compiled graph for each tier.

B slots, N drafts per slot, V vocabulary.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ringkv.base.sampling import SamplerTier
from ringkv.engine.sampling.state import SamplingState
from ringkv.graphs.graph import Backend, Graph, StaticFunction
from ringkv.kernels.library import is_native
from ringkv.kernels.sampling import operators
from ringkv.kernels.sampling.tiers import DRAFT_FIELDS, DRAFT_TIERS, SAMPLERS, Inputs


def samplers(backend: Backend, slots: int, vocab: int, device: torch.device) -> Mapping[SamplerTier, Graph]:
    """The graph of each tier, of the tensors of `Inputs`."""
    if is_compiled(device):
        example = list(_example(slots, vocab, device))
        return {tier: backend.make(f"sample-{tier.name.lower()}", graph(tier), example) for tier in SamplerTier}
    return {tier: _scored if tier >= SamplerTier.ADJUSTED else _sampled for tier in SamplerTier}


def draft_samplers(backend: Backend, rows: int, vocab: int, device: torch.device) -> Mapping[SamplerTier, Graph]:
    """The same for all drafts of all slots, of the first tensors of `Inputs`; only the tiers that drafts may have."""
    if is_compiled(device):
        example = list(_example(rows, vocab, device)[: len(DRAFT_FIELDS)])
        return {
            tier: backend.make(f"sample-{tier.name.lower()}-drafts", graph_of_drafts(tier), example)
            for tier in DRAFT_TIERS
        }
    return dict.fromkeys(DRAFT_TIERS, _sampled)


def is_compiled(device: torch.device) -> bool:
    """Whether a tier is a graph of its own, rather than the C++ operator that serves all of them."""
    return device.type != "cpu" or not is_native("sample")


def graph(tier: SamplerTier) -> StaticFunction:
    """A tier as a static function of the tensors of `Inputs`."""
    return StaticFunction(partial(_sample, tier), f"sample {tier.name}")


def _sample(tier: SamplerTier, *tensors: Tensor) -> tuple[Tensor, ...]:
    return SAMPLERS[tier](Inputs(*tensors))


def graph_of_drafts(tier: SamplerTier) -> StaticFunction:
    """A tier of `DRAFT_TIERS` as a static function of the first tensors of `Inputs`: it reads no others."""
    return StaticFunction(partial(_sample_drafts, tier), f"sample drafts {tier.name}")


def _sample_drafts(tier: SamplerTier, *tensors: Tensor) -> tuple[Tensor, ...]:
    unread = len(Inputs._fields) - len(DRAFT_FIELDS)
    return SAMPLERS[tier](Inputs(*tensors, *[tensors[0]] * unread))


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
