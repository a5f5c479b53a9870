"""ranks: which models can be divided among how many ranks. No torch."""

from collections.abc import Mapping

from ringkv.base.errors import InvalidRequest, UnsupportedModel
from ringkv.models.experts import Experts, StackedExperts
from ringkv.models.latent import LatentAttention
from ringkv.models.layer import Attention, FeedForward, Layer

LARGEST = 64  # ranks
BLOCKS = (Attention, LatentAttention, FeedForward, Experts, StackedExperts)


def check_ranks(layers: Mapping[str, Layer], count: int) -> None:
    """Raise UnsupportedModel for layers that are not implemented for ranks, InvalidRequest for a number of them."""
    for layer in layers.values():
        for block in (layer, layer.attention, layer.feed_forward):
            if type(block) not in (Layer, *BLOCKS):
                raise UnsupportedModel(
                    f"tensor parallel is not implemented for {type(block).__name__} layers; use 1 rank"
                )
        if isinstance(layer.attention, Attention) and layer.attention.qk_norm == "all":
            raise UnsupportedModel("tensor parallel is not implemented for a norm over all heads; use 1 rank")
    if not _divides(layers, count):
        possible = [str(one) for one in range(1, LARGEST + 1) if _divides(layers, one)]
        raise InvalidRequest(
            f"tensor_parallel {count} does not divide the model's heads; choose one of {', '.join(possible)}",
            "tensor_parallel",
        )


def _divides(layers: Mapping[str, Layer], count: int) -> bool:
    return all(_divides_heads(layer.attention, count) for layer in layers.values())


def _divides_heads(block: object, count: int) -> bool:
    """Whether each rank gets whole groups of query heads, or the same part of one group as others."""
    if isinstance(block, LatentAttention):
        return count <= block.heads
    assert isinstance(block, Attention)
    return count <= block.kv_heads or not (count % block.kv_heads or block.heads % count)
