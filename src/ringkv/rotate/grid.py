"""Grid: the values that a quantised matrix can have: scale * (q - zero), with a scale and a zero for each group.

O outputs, I inputs, g elements of a group. q and zero are integers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CLIPS = 21  # candidates
TINY = 2.0**-24  # the smallest scale; float16 has it
DROPPED = 4  # bits of a float16 scale's significand: seven stay


class Levels(NamedTuple):
    """The values of a group: scale and zero, float32 [...]."""

    scale: Tensor
    zero: Tensor

    def values(self, q: Tensor) -> Tensor:
        """Return the values of integers [..., g]."""
        return (q - self.zero[..., None]) * self.scale[..., None]


class Rounded(NamedTuple):
    """q int8 [O, I], and the levels of each group, [O, I / g]."""

    q: Tensor
    levels: Levels

    @property
    def values(self) -> Tensor:
        """float32 [O, I]."""
        groups: Tensor = self.q.float().unflatten(1, (self.levels.scale.shape[1], -1))
        return self.levels.values(groups).flatten(1)


@dataclass(frozen=True)
class Grid:
    """bits: 4 or 8. group: elements that share a scale; None is a row. Rows have zeros of 0, groups any of 16.

    The kernels' 4 bits have a scale and a minimum in float16. Scales of 4 bits are exact in float16. In groups,
    they have so few bits that the minimum, -scale * zero, is exact, too: the engine loads the integers unchanged.
    """

    bits: int
    group: int | None = None

    @property
    def largest(self) -> int:
        """The largest integer."""
        return (1 << self.bits - 1) - 1

    @property
    def smallest(self) -> int:
        """The smallest integer. The kernels' 8 bits are symmetric."""
        return -self.largest - (self.bits == 4)

    def fits(self, inputs: int) -> bool:
        """Whether groups divide a row."""
        return inputs % (self.group or inputs) == 0

    def levels(self, group: Tensor) -> Levels:
        """Return the levels with the least squared error for each group of weights [..., g].

        Candidates clip the group's range to 100% .. 60% (QuaRot, arXiv 2404.00456).
        """
        low, high = group.amin(-1).clamp(max=0), group.amax(-1).clamp(min=0)
        best, least = Levels(*(torch.zeros_like(low) for _ in Levels._fields)), torch.full_like(low, torch.inf)
        for clip in torch.linspace(1.0, 0.6, CLIPS):
            levels = self._between(low * clip, high * clip)
            error = (levels.values(self.nearest(group, levels)) - group).square_().sum(-1)
            best = Levels(*(torch.where(error < least, new, old) for new, old in zip(levels, best, strict=True)))
            least = torch.minimum(error, least)
        return best

    def nearest(self, weights: Tensor, levels: Levels) -> Tensor:
        """Return the nearest integers of weights [..., g], in their dtype."""
        scaled = weights / levels.scale[..., None] + levels.zero[..., None]
        return scaled.round_().clamp_(self.smallest, self.largest)

    def rounded(self, weight: Tensor) -> Rounded:
        """Round a matrix [O, I] to nearest."""
        groups = weight.float().unflatten(1, (-1, self.group or weight.shape[1]))
        levels = self.levels(groups)
        return Rounded(self.nearest(groups, levels).flatten(1).to(torch.int8), levels)

    def _between(self, low: Tensor, high: Tensor) -> Levels:
        """Return levels that span low <= 0 to high >= 0."""
        if self.group is None:
            exact = torch.maximum(-low, high) / self.largest
            scale = (exact.half().float() if self.bits == 4 else exact).clamp(min=TINY)
            return Levels(scale, torch.zeros_like(scale))
        scale = _short((high - low) / (self.largest - self.smallest))
        return Levels(scale, (self.smallest - low / scale).round_().clamp_(self.smallest, self.largest))


def _short(scale: Tensor) -> Tensor:
    """Round to float16 with seven bits of significand; 16 times such a scale fits float16's eleven."""
    bits = scale.half().view(torch.int16) + (1 << DROPPED - 1) & -(1 << DROPPED)
    return bits.view(torch.float16).float().clamp(min=TINY)
