"""gaussian_top_k: a feed-forward with activation sparsity by statistical top-k (Gemma 3n), as plain data. No torch.

Gates below the mean plus a number of standard deviations become zero. If gates are normally distributed, these are the
part `sparsity` of them (Spark Transformer, arXiv 2506.06644).
"""

from dataclasses import dataclass
from statistics import NormalDist

from ringkv.models.layer import FeedForward
from ringkv.models.weights import Declared


@dataclass(frozen=True)
class GaussianTopK(FeedForward):
    """sparsity: part of the gates that become zero; above 0 and below 1."""

    sparsity: float = 0.5

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean below which gates become zero."""
        return NormalDist().inv_cdf(self.sparsity)

    def weights(self, prefix: str) -> Declared:
        """Declare gate and up as one plain matrix: gates are compared with each other before they multiply ups."""
        declared = super().weights(prefix)
        return {**declared, "gate_up": declared["gate_up"]._replace(pack="matrix")}
