"""gguf_stacks: a layer's experts that Hugging Face layout has as stacks, too."""

from collections.abc import Sequence

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown_names
from ringkv.weights.gguf import GGUF

STACKS = {"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)}
"""The tensors of a GGUF in each stack."""


def stack_shape(gguf: GGUF, names: Sequence[str], dimensions: int) -> tuple[int, ...]:
    """Return the shape of all these tensors. Raises BadWeights if they differ or have other dimensions."""
    shapes = {gguf.shape(name) for name in names}
    first = gguf.shape(names[0])
    if len(shapes) > 1 or len(first) != dimensions:
        raise BadWeights(
            f"{gguf.path} has {shown_names(names)} of shapes {', '.join(map(str, sorted(shapes)))}, "
            f"{dimensions} equal sizes are needed; fetch it again"
        )
    return first
