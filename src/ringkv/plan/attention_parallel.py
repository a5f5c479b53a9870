"""attention_parallel: what ranks divide of attention, if a user leaves it open."""

from typing import get_args

from ringkv.base.ranks import AttentionParallel
from ringkv.plan.checks import choice


def attention_parallel(requested: AttentionParallel | None, can_divide_slots: bool, ranks: int) -> AttentionParallel:
    """Return the request, or what takes the fewest bytes: a rank has its own slots' latents, else those of all slots.

    Raises `InvalidRequest` with the valid names.
    """
    usual: AttentionParallel = "slots" if can_divide_slots and ranks > 1 else "heads"
    return choice("attention_parallel", requested, get_args(AttentionParallel), usual)
