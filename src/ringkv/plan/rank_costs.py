"""rank_costs: what N ranks hold and read of experts, and the slots of latents that they divide.

Experts under tensor and under expert parallel, with E experts and S slots that decode together:

p                = distinct_share          of the experts that some slot chooses
tensor parallel    E x p x expert / N      read by each rank in a decode step, on average
expert parallel    busiest x expert        a step waits for the rank with the most chosen experts; `busiest` is the mean
                                           of the largest of N binomials of E / N experts with probability p
exchanged          S x hidden x 4          bytes of the float32 sum after a layer's experts, the same under both; one
                                           rank exchanges nothing, and its read is E x p x expert

A latent has no heads to divide, so ranks divide the batch (SnapStream, arXiv 2511.03092, section 5): slot s is on rank
s % N. Each rank has all staging, and samples every slot's token.

slots = N x floor((memory - reserve - weights - staging) / (slot + N x sampler))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, comb
from typing import NamedTuple

from ringkv.base.kv import KVChoice
from ringkv.plan.footprint import (
    Footprint,
    StagedPrompts,
    bits_of,
    distinct_share,
    sampler_bytes,
    slot_bytes,
    staging_bytes,
    weight_bytes,
)
from ringkv.plan.shapes import ExpertShape, Shape

COMPRESSION = 4  # of the paper's caches


class PaperBatch(NamedTuple):
    """The largest batch for one cache in table 5 of the paper. rate: tokens per second.

    Rates include an assumed factor of 2.4 for multi-token prediction.
    """

    slots: int
    rate: int


PAPER: Mapping[int, tuple[PaperBatch, PaperBatch]] = {
    131_072: (PaperBatch(16, 434), PaperBatch(64, 1832)),
    65_536: (PaperBatch(32, 908), PaperBatch(128, 3928)),
    32_768: (PaperBatch(64, 1832), PaperBatch(256, 7903)),
}
"""By context, full and compressed, of DeepSeek-R1 on 16 ranks."""
PAPER_MODEL, PAPER_RANKS = "deepseek-r1", 16


@dataclass(frozen=True)
class RankMachine:
    """Ranks with equal memory. stored: the format of weights; None is the published one."""

    ranks: int
    memory: int
    reserve: int = 0
    stored: str | None = None


@dataclass(frozen=True)
class CacheSlots:
    """Slots of one cache. slot_bytes: of one, on its rank. slots: of all ranks."""

    entries: int
    slot_bytes: int
    slots: int
    paper: PaperBatch | None


@dataclass(frozen=True)
class DividedSlots:
    """Slots of one context, full and compressed. Bytes are those of one rank."""

    tokens: int
    weight_bytes: int
    staging_bytes: int
    caches: tuple[CacheSlots, CacheSlots]


def divided_slots(shape: Shape, machine: RankMachine, dtype: str = "bfloat16") -> tuple[DividedSlots, ...]:
    """Return the slots for each context of the paper that the model has, full and a quarter of it.

    There are none unless several ranks can divide the slots of the model.
    """
    contexts = PAPER if machine.ranks > 1 and shape.has_latents else ()
    return tuple(_divided(shape, machine, tokens, dtype) for tokens in contexts if tokens <= shape.context)


def _divided(shape: Shape, machine: RankMachine, tokens: int, dtype: str) -> DividedSlots:
    ranks = machine.ranks
    weights = weight_bytes(shape, machine.stored or shape.native, ranks)
    staged = StagedPrompts(tokens, lanes=1, chunk=1, window=KVChoice().window)
    staging, sampler = staging_bytes(shape, staged, dtype, ranks), sampler_bytes(shape.vocab)
    is_papers = shape.name == PAPER_MODEL and ranks == PAPER_RANKS

    def cache(entries: int, paper: PaperBatch) -> CacheSlots:
        slot = slot_bytes(shape, entries, dtype, ranks)
        need = Footprint(slot, weights, staging, machine.reserve, sampler=sampler, slot_ranks=ranks)
        return CacheSlots(entries, slot, need.slots_in(machine.memory), paper if is_papers else None)

    full, compressed = PAPER[tokens]
    return DividedSlots(tokens, weights, staging, (cache(tokens, full), cache(tokens // COMPRESSION, compressed)))


@dataclass(frozen=True)
class ExpertCosts:
    """Bytes of one rank. tensor, expert: under tensor parallel, under expert parallel."""

    slots: int
    tensor_bytes: int  # of experts that the rank holds
    expert_bytes: int
    tensor_read: int  # by a decode step of `slots` slots
    expert_read: int
    exchanged: int  # in each layer with experts


def expert_costs(experts: ExpertShape, stored: str, ranks: int, slots: int) -> ExpertCosts:
    """Return the costs of the largest of so many ranks."""
    expert = experts.elements * bits_of(stored).layers / 8 / experts.count  # of one expert, in all layers
    likely, most = distinct_share(experts.chosen, experts.count, slots), ceil(experts.count / ranks)
    return ExpertCosts(
        slots=slots,
        tensor_bytes=ceil(expert * experts.count / ranks),
        expert_bytes=ceil(expert * most),
        tensor_read=ceil(expert * experts.count * likely / ranks),
        expert_read=ceil(expert * busiest(most, likely, ranks)),
        exchanged=slots * experts.hidden * 4 if ranks > 1 else 0,
    )


def busiest(experts: int, likely: float, ranks: int) -> float:
    """Return the mean of the largest number of chosen experts that one of so many ranks has, of `experts` each."""
    total, below = 0.0, 0.0
    for n in range(experts):
        below += comb(experts, n) * likely**n * (1 - likely) ** (experts - n)
        total += 1 - min(1.0, below) ** ranks
    return total
