"""divided_slots: slots of latents that N ranks divide. Slot s is on rank s % N.

A latent has no heads to divide, so ranks divide the batch (SnapStream, arXiv 2511.03092, section 5). Each rank has all
staging, and samples every slot's token.

slots = N x floor((memory - reserve - weights - staging) / (slot + N x sampler))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ringkv.base.kv import KVChoice
from ringkv.plan.footprint import Footprint, Staged, sampler_bytes, slot_bytes, staging_bytes, weight_bytes
from ringkv.plan.shapes import Shape

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
class Machine:
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


def divided_slots(shape: Shape, machine: Machine, dtype: str = "bfloat16") -> tuple[DividedSlots, ...]:
    """Return the slots for each context of the paper that the model has, full and a quarter of it.

    There are none unless several ranks can divide the slots of the model.
    """
    contexts = PAPER if machine.ranks > 1 and shape.has_latents else ()
    return tuple(_divided(shape, machine, tokens, dtype) for tokens in contexts if tokens <= shape.context)


def _divided(shape: Shape, machine: Machine, tokens: int, dtype: str) -> DividedSlots:
    ranks = machine.ranks
    weights = weight_bytes(shape, machine.stored or shape.native, ranks)
    staged = Staged(tokens, lanes=1, chunk=1, window=KVChoice().window)
    staging, sampler = staging_bytes(shape, staged, dtype, ranks), sampler_bytes(shape.vocab)
    is_papers = shape.name == PAPER_MODEL and ranks == PAPER_RANKS

    def cache(entries: int, paper: PaperBatch) -> CacheSlots:
        slot = slot_bytes(shape, entries, dtype, ranks)
        need = Footprint(slot, weights, staging, machine.reserve, sampler=sampler, slot_ranks=ranks)
        return CacheSlots(entries, slot, need.slots_in(machine.memory), paper if is_papers else None)

    full, compressed = PAPER[tokens]
    return DividedSlots(tokens, weights, staging, (cache(tokens, full), cache(tokens // COMPRESSION, compressed)))
