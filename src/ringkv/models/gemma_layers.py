"""Layers that only Gemma has, as plain data: with per-layer embeddings, and with several streams. No torch.

Per-layer embeddings (PLE, Gemma 3n and Gemma 4): a layer's input for a token has `width` elements, a row of a table
plus a projection of the token's embedding.

Several streams (AltUp, arXiv 2301.13310, Gemma 3n): a layer predicts all streams, runs its blocks on one, and corrects
all by how far that one's prediction was off. Gemma 3n adds a low-rank branch beside attention (LAuReL, arXiv
2411.07501).
"""

from dataclasses import dataclass

from ringkv.models.layer import Layer
from ringkv.models.weights import CheckpointTensor, Declared, Weight, linear, parts, vector


@dataclass(frozen=True)
class PerLayerInputs:
    """Inputs of `width` elements for each of `layers`. vocab: rows of the table."""

    layers: int
    width: int
    hidden: int
    vocab: int

    @property
    def elements(self) -> int:
        """Elements of a token's inputs in all layers."""
        return self.layers * self.width

    def weights(self, module: str) -> Declared:
        """Declare the weights of the checkpoint's module `module`."""
        table = CheckpointTensor(f"{module}.embed_tokens_per_layer.weight", (self.vocab, self.elements))
        projection = parts(module, {"per_layer_model_projection": self.elements})
        return {
            "inputs_embed": Weight((table,), "table", shard=0),
            **linear("inputs_projection", projection, self.hidden, False, 0, "matrix"),
            "inputs_norm": vector(f"{module}.per_layer_projection_norm.weight", self.width),
        }


@dataclass(frozen=True)
class PerLayerInputLayer(Layer):
    """A layer that adds its per-layer input, if it has one, to x [hidden] after both blocks, and scales the sum.

    inputs: elements of that input, which follow those of x in the layer's argument; 0 for none.
    """

    inputs: int = 0

    def weights(self, prefix: str) -> Declared:
        inputs = input_weights(prefix, self.attention.hidden, self.inputs) if self.inputs else {}
        return {**super().weights(prefix), **inputs, "scalar": vector(f"{prefix}.layer_scalar", 1)}


def input_weights(prefix: str, hidden: int, width: int) -> Declared:
    """Declare the weights that gate and project the per-layer input of the checkpoint's layer `prefix`."""
    return {
        **linear("input_gate", parts(prefix, {"per_layer_input_gate": width}), hidden, False, 0, "matrix"),
        **linear("input_projection", parts(prefix, {"per_layer_projection": hidden}), width, False, 1, "matrix"),
        "input_norm": vector(f"{prefix}.post_per_layer_input_norm.weight", hidden),
    }


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
