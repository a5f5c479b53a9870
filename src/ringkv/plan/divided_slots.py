"""divided_slots: latent caches whose slots are divided among N ranks: slot s is on rank s % N.

A latent has no heads to divide, so ranks divide the batch (SnapStream, arXiv 2511.03092, section 5). Each rank has all
staging, and samples every slot's token.

slots = N x floor((memory - reserve - weights - staging) / (slot + N x sampler))
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ringkv.base.cache_spec import PlaneFormat
from ringkv.plan.footprint import Footprint, sampler_bytes, slot_bytes, staging_bytes, weight_bytes
from ringkv.plan.shapes import Shape

COMPRESSION = 4  # of the paper's caches


@dataclass(frozen=True)
class PaperBatch:
    """The largest batch of table 5 of the paper, and its tokens per second with an assumed 2.4x of multi-token
    prediction.
    """

    full: int
    compressed: int
    full_rate: int
    compressed_rate: int


PAPER: Mapping[int, PaperBatch] = {
    131_072: PaperBatch(16, 64, 434, 1832),
    65_536: PaperBatch(32, 128, 908, 3928),
    32_768: PaperBatch(64, 256, 1832, 7903),
}
"""By context, of DeepSeek-R1 on 16 ranks. The compressed cache has a quarter of the context's entries."""
PAPER_MODEL, PAPER_RANKS = "deepseek-r1", 16


@dataclass(frozen=True)
class Machine:
    """Ranks with equal memory. stored: the format of weights; None is the published one."""

    ranks: int
    memory: int
    reserve: int = 0
    stored: str | None = None


@dataclass(frozen=True)
class DividedSlots:
    """Slots of one context. Bytes are those of one rank, slots those of all."""

    tokens: int
    entries: int  # of a compressed slot
    weight_bytes: int
    staging_bytes: int
    full_slot_bytes: int
    compressed_slot_bytes: int
    full: int
    compressed: int
    paper: PaperBatch | None


def is_divided(shape: Shape, ranks: int) -> bool:
    """Whether ranks divide the slots: the model has latents alone."""
    return ranks > 1 and all(group.spec.value is None for group in shape.groups)


def divided_slots(
    shape: Shape, machine: Machine, dtype: str = "bfloat16", format: PlaneFormat = "plain"
) -> tuple[DividedSlots, ...]:
    """Return the slots for each context of the paper that the model has, full and a quarter of it."""
    return tuple(_divided(shape, machine, tokens, dtype, format) for tokens in PAPER if tokens <= shape.context)


def _divided(shape: Shape, machine: Machine, tokens: int, dtype: str, format: PlaneFormat) -> DividedSlots:
    ranks, stored = machine.ranks, machine.stored or shape.native
    weights, staging = weight_bytes(shape, stored, ranks), staging_bytes(shape, tokens, 1, 1, dtype, ranks)
    full, compressed = (slot_bytes(shape, entries, dtype, ranks, format) for entries in (tokens, tokens // COMPRESSION))
    sampler = ranks * sampler_bytes(shape.vocab)

    def slots(slot: int) -> int:
        return ranks * Footprint(slot, weights, staging, machine.reserve, sampler=sampler).slots_in(machine.memory)

    is_paper = shape.name == PAPER_MODEL and ranks == PAPER_RANKS
    return DividedSlots(
        tokens=tokens,
        entries=tokens // COMPRESSION,
        weight_bytes=weights,
        staging_bytes=staging,
        full_slot_bytes=full,
        compressed_slot_bytes=compressed,
        full=slots(full),
        compressed=slots(compressed),
        paper=PAPER[tokens] if is_paper else None,
    )
