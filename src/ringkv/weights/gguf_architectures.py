"""gguf_architectures: the architecture of a GGUF file."""

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_architecture import Architecture
from ringkv.weights.gguf_dense import DENSE
from ringkv.weights.gguf_mixtures import MIXTURES


def kind_of(gguf: GGUF) -> str:
    """Return general.architecture, which every metadata key of the model begins with."""
    return gguf.text("general.architecture", "none")


def architecture_of(gguf: GGUF) -> Architecture:
    """Return the file's architecture. Raises UnsupportedModel for another one."""
    kind = kind_of(gguf)
    dense = not gguf.get(f"{kind}.expert_count", 0)
    found = (DENSE if dense else MIXTURES).get(kind)
    if found is None:
        what = "" if dense else " with a mixture of experts"
        raise UnsupportedModel(
            f"GGUF architecture {shown(kind)}{what} is not implemented; ringkv runs {', '.join(DENSE)}, and "
            f"mixtures of experts of {', '.join(MIXTURES)}"
        )
    return found
