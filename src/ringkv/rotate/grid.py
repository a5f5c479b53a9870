"""Grid: the values that a quantised matrix can have: whole numbers times a scale for each group of a row's elements.

O outputs, I inputs, g elements of a group.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CLIPS = 21  # scales that are tried, from none clipped to 40% of the largest
TINY = 1e-8  # replaces a scale of zero; float16 has it


class Rounded(NamedTuple):
    """q int8 [O, I], and the scale of each group, float32 [O, I / g]."""

    q: Tensor
    scale: Tensor

    @property
    def values(self) -> Tensor:
        """float32 [O, I]."""
        groups: Tensor = self.q.float().unflatten(1, (self.scale.shape[1], -1))
        return (groups * self.scale[..., None]).flatten(1)


@dataclass(frozen=True)
class Grid:
    """bits: 4 or 8. group: elements that share a scale; None is a row.

    Scales of 4 bits are float16, as the kernels have them, so a checkpoint's integers need no second rounding.
    """

    bits: int
    group: int | None = None

    @property
    def most(self) -> int:
        """The largest integer."""
        return (1 << self.bits - 1) - 1

    @property
    def least(self) -> int:
        """The smallest integer. The kernels' 8 bits are symmetric."""
        return -self.most - (self.bits == 4)

    def fits(self, inputs: int) -> bool:
        """Whether groups divide a row."""
        return inputs % (self.group or inputs) == 0

    def scales(self, group: Tensor) -> Tensor:
        """Return the scale float32 [...] with the least squared error for each group of weights [..., g].

        It is searched among those that clip the largest weight by nothing and more (QuaRot, arXiv 2404.00456).
        """
        largest = group.abs().amax(-1)
        best, least = torch.empty_like(largest), torch.full_like(largest, torch.inf)
        for clip in torch.linspace(1.0, 0.6, CLIPS):
            scale = self._stored(largest * clip / self.most)
            error = (self.nearest(group, scale) * scale[..., None] - group).square_().sum(-1)
            best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
        return best

    def nearest(self, weights: Tensor, scale: Tensor) -> Tensor:
        """Return whole numbers for weights [..., g], in their dtype."""
        return (weights / scale[..., None]).round_().clamp_(self.least, self.most)

    def rounded(self, weight: Tensor) -> Rounded:
        """Round a matrix [O, I] to nearest."""
        groups = weight.float().unflatten(1, (-1, self.group or weight.shape[1]))
        scale = self.scales(groups)
        return Rounded(self.nearest(groups, scale).flatten(1).to(torch.int8), scale)

    def _stored(self, scale: Tensor) -> Tensor:
        return (scale.half().float() if self.bits == 4 else scale).clamp(min=TINY)
