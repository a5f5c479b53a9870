"""gguf_heads: sizes of attention heads in a GGUF, as config.json has them."""

from typing import Any

from ringkv.base.errors import UnsupportedModel
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_fields import head_counts, positive


def grouped(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the sizes of heads whose elements all rotate. Raises UnsupportedModel for others."""
    sizes, rotated = _sizes(gguf, kind)
    check_width(gguf, "rope.dimension_count", rotated, sizes["head_dim"])
    return sizes


def partial(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the sizes of heads with partial rotary embedding."""
    sizes, rotated = _sizes(gguf, kind)
    return {**sizes, "partial_rotary_factor": rotated / sizes["head_dim"]}


def _sizes(gguf: GGUF, kind: str) -> tuple[dict[str, Any], int]:
    """Return the settings and the number of rotary elements of a head."""
    heads, kv_heads = head_counts(gguf, kind)
    head_dim = positive(gguf, f"{kind}.attention.key_length", positive(gguf, f"{kind}.embedding_length") // heads)
    value = positive(gguf, f"{kind}.attention.value_length", head_dim)
    check_width(gguf, "attention.value_length", value, head_dim)
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return sizes, positive(gguf, f"{kind}.rope.dimension_count", head_dim)


def check_width(gguf: GGUF, key: str, width: int, head_dim: int) -> None:
    """Raise UnsupportedModel unless a width, which `key` has, is that of a head."""
    if width != head_dim:
        raise UnsupportedModel(
            f"{gguf.path} has {key} {width} and head_dim {head_dim}; ringkv needs values as wide as keys, "
            "and rotary embedding over the whole head"
        )
