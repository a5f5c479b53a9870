"""per_layer_inputs: per-layer embeddings (PLE, Gemma 3n and Gemma 4), as plain data. No torch.

A layer's input for a token has `width` elements: a row of a table, plus a projection of the token's embedding.
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
