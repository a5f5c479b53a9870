"""Rotation: how encoded vectors are rotated, and where their elements are when they are stored."""

from dataclasses import dataclass
from typing import Any

from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.kernels.gpu.hadamard import stages
from ringkv.kernels.gpu.stored_order import in_order


@dataclass(frozen=True)
class Rotation:
    """Groups of elements, which are rotated one by one.

    whole: elements in whole groups, before the last group. stages, whole_stages: of the rotation of the last group, and
    of a whole one. order: see `stored_order`.
    """

    stages: int
    whole_stages: int
    whole: int = 0
    order: Any = in_order

    @classmethod
    def of_keys(cls, width: int) -> "Rotation":
        """Return that of a head's keys of so many elements, which are one group."""
        return cls(stages(width), stages(width))

    @classmethod
    def of_latents(cls, order: Any, width: int) -> "Rotation":
        whole = (width - 1) // LATENT_GROUP * LATENT_GROUP
        last = stages(width - whole)
        return cls(last, stages(LATENT_GROUP) if whole else last, whole, order)
