"""altup: layers with several streams of which one is computed (AltUp, arXiv 2301.13310), as plain data. No torch.

A layer predicts all streams, runs its blocks on one, and corrects all by how far that one's prediction was off. Gemma
3n adds a low-rank branch beside attention (LAuReL, arXiv 2411.07501) and per-layer embeddings.
"""

from dataclasses import dataclass

from ringkv.models.layer import Layer
from ringkv.models.per_layer_inputs import input_weights
from ringkv.models.weights import CheckpointTensor, Declared, Weight, linear, parts, vector


@dataclass(frozen=True)
class Streams:
    """`count` streams of `hidden` elements each, made from the embedding and averaged after the last layer."""

    count: int
    hidden: int

    @property
    def elements(self) -> int:
        return self.count * self.hidden

    def weights(self, module: str) -> Declared:
        """Declare the weights of the checkpoint's module `module`: a square matrix for each stream but the first."""
        return {
            "widen": self._squares(f"{module}.altup_projections", 1),
            "narrow": self._squares(f"{module}.altup_unembed_projections", self.count - 1),
        }

    def _squares(self, name: str, matrices: int) -> Weight:
        shape = self.hidden, self.hidden
        each = (CheckpointTensor(f"{name}.{index}.weight", shape) for index in range(self.count - 1))
        return Weight(tuple(each), "matrix", None, matrices)


@dataclass(frozen=True)
class AltUpLayer(Layer):
    """streams: their number. active: the one that the blocks run on. is_scaled: it is scaled before it gates
    the per-layer input of `inputs` elements. rank: of the branch beside attention.
    """

    inputs: int = 0
    streams: int = 1
    active: int = 0
    is_scaled: bool = True
    rank: int = 1

    def weights(self, prefix: str) -> Declared:
        hidden, count, altup, branch = self.attention.hidden, self.streams, f"{prefix}.altup", f"{prefix}.laurel"
        return {
            **super().weights(prefix),
            **input_weights(prefix, hidden, self.inputs),
            **linear("router", parts(altup, {"modality_router": count}), hidden, False, 0, "plain"),
            "router_norm": vector(f"{altup}.router_norm.weight", hidden),
            **linear("predict", parts(altup, {"prediction_coefs": count * count}), count, False, 0, "exact"),
            **linear("correct", parts(altup, {"correction_coefs": count}), count, False, 0, "exact"),
            "active_scale": vector(f"{altup}.correct_output_scale", hidden),
            **linear("branch_in", parts(branch, {"linear_left": self.rank}), hidden, False, 0, "matrix"),
            **linear("branch_out", parts(branch, {"linear_right": hidden}), self.rank, False, 1, "matrix"),
            "branch_norm": vector(f"{branch}.post_laurel_norm.weight", hidden),
        }
