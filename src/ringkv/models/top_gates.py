"""top_gates: a feed-forward of which only the largest gates are not zero (Gemma 3n), as plain data. No torch.

The largest are those above the mean by a number of standard deviations, which for normally distributed gates is the
part `sparsity` of them (Spark Transformer, arXiv 2506.06644).
"""

from dataclasses import dataclass
from statistics import NormalDist

from ringkv.models.layer import FeedForward
from ringkv.models.weights import Declared


@dataclass(frozen=True)
class TopGates(FeedForward):
    """sparsity: part of the gates that become zero; above 0 and below 1."""

    sparsity: float = 0.5

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean at which gates are 0."""
        return NormalDist().inv_cdf(self.sparsity)

    def weights(self, prefix: str) -> Declared:
        """Declare gate and up as one plain matrix: gates are compared with each other before they meet ups."""
        declared = super().weights(prefix)
        return {**declared, "gate_up": declared["gate_up"]._replace(pack="matrix")}
