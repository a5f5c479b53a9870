"""advice: which cache to serve with, from what each lost on the same prompts and what it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringkv.evaluation.costs import Cost

MOST_LOST = 5.0  # percentage points


@dataclass(frozen=True)
class Offer:
    """One cache: what it costs in points on how many prompts, and the bytes of a slot.

    score: in percent. lost: points less than the full cache has, with the ends of the 95% interval; None for the full
    cache, and ends of None for too few prompts, as `outcome` defines them. slot_bytes: held for a request, on disk too.
    read_bytes: of them a decode step reads at most. flags: of `ringkv serve`. cost: measured times; None if there are
    none yet.
    """

    cell: str
    prompts: int
    score: float
    lost: float | None
    least_lost: float | None
    most_lost: float | None
    slot_bytes: int
    read_bytes: int
    flags: tuple[str, ...]
    cost: "Cost | None" = None


@dataclass(frozen=True)
class Advice:
    """chosen: one of the offers. why: in words. command: serves with it prompts of at most so many tokens."""

    chosen: Offer
    why: str
    command: str
    prompt_tokens: int
    offers: tuple[Offer, ...]

    @property
    def limit(self) -> str:
        """Say which prompts it is for."""
        return f"It is for prompts of up to {self.prompt_tokens:,} tokens, like the longest of these."


def choose(offers: Sequence[Offer], most_lost: float = MOST_LOST) -> tuple[Offer, str]:
    """Return the offer with the fewest bytes, held and read, of those that lose at most so many points, and why.

    An offer counts as losing what the upper end of its interval says, so that chance does not recommend it. The full
    cache is always acceptable.
    """
    (full,) = (offer for offer in offers if offer.lost is None)
    if not full.score:
        return full, "it scores 0, so these prompts cannot show what another cache loses; look at their answers"
    good = [offer for offer in offers if offer.most_lost is not None and offer.most_lost <= most_lost]
    limit = f"{most_lost:g} points"
    if good:
        chosen = min((full, *good), key=lambda offer: offer.slot_bytes + offer.read_bytes)
        return chosen, f"of the caches that lose at most {limit} at 95% confidence it holds and reads the fewest bytes"
    if all(offer.most_lost is None for offer in offers):
        return full, f"{full.prompts} prompts are too few to say what a compressed cache loses; give more"
    return full, f"no other cache is sure to lose at most {limit}; more prompts may tell, or raise --max-loss"
