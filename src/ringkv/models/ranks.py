"""ranks: which models can be divided among how many ranks. No torch."""

from collections.abc import Collection, Mapping

from ringkv.base.errors import InvalidRequest, UnsupportedModel
from ringkv.base.ranks import AttentionParallel, Rank
from ringkv.models.experts import Experts, StackedExperts
from ringkv.models.latent import LatentAttention
from ringkv.models.layer import Attention, FeedForward, Layer

LARGEST = 64  # ranks
BLOCKS = (Attention, LatentAttention, FeedForward, Experts, StackedExperts)


def has_latents(layers: Collection[Layer]) -> bool:
    """Whether all layers have latent attention."""
    return all(isinstance(layer.attention, LatentAttention) for layer in layers)


def check_ranks(layers: Mapping[str, Layer], rank: Rank, parallel: AttentionParallel) -> None:
    """Raise UnsupportedModel for layers that are not implemented for ranks.

    Raises InvalidRequest if so many ranks cannot divide the heads, or the slots or the experts as requested.
    """
    _check_blocks(layers)
    _check_heads(layers, rank.count)
    if parallel == "slots" and not has_latents(layers.values()):
        raise InvalidRequest(
            "attention_parallel slots is for latent attention (DeepSeek); ranks divide this model's key-value heads, "
            "so choose heads",
            "attention_parallel",
        )
    if rank.expert_parallel:
        _check_experts(layers, rank.count)


def _check_blocks(layers: Mapping[str, Layer]) -> None:
    for layer in layers.values():
        for block in (layer, layer.attention, layer.feed_forward):
            if type(block) not in (Layer, *BLOCKS):
                raise UnsupportedModel(
                    f"tensor parallel is not implemented for {type(block).__name__} layers; use 1 rank"
                )
        if _rotates(layer):
            raise UnsupportedModel("tensor parallel is not implemented for rotated checkpoints; use 1 rank")
        if isinstance(layer.attention, Attention) and layer.attention.qk_norm == "all":
            raise UnsupportedModel("tensor parallel is not implemented for a norm over all heads; use 1 rank")


def _rotates(layer: Layer) -> bool:
    """Whether a block mixes elements that different ranks would have."""
    mixed = isinstance(layer.attention, Attention) and layer.attention.rotated_heads > 1
    return mixed or (isinstance(layer.feed_forward, FeedForward) and layer.feed_forward.rotated > 1)


def _check_heads(layers: Mapping[str, Layer], count: int) -> None:
    if not _divides(layers, count):
        possible = [str(ranks) for ranks in range(1, LARGEST + 1) if _divides(layers, ranks)]
        raise InvalidRequest(
            f"tensor_parallel {count} does not suit the model's heads: at most one rank for each key-value head, or a "
            f"multiple of them that divides the query heads; choose one of {', '.join(possible)}",
            "tensor_parallel",
        )


def _check_experts(layers: Mapping[str, Layer], count: int) -> None:
    """Raise InvalidRequest unless each rank gets an expert."""
    blocks = (layer.feed_forward for layer in layers.values())
    experts = [block.router.experts for block in blocks if isinstance(block, Experts)]
    if not experts:
        raise InvalidRequest(
            "expert_parallel divides a mixture of experts, and this model has no experts; leave it out",
            "expert_parallel",
        )
    if min(experts) < count:
        raise InvalidRequest(
            f"expert_parallel cannot divide {min(experts)} experts among {count} ranks; "
            f"use at most {min(experts)} ranks, or leave it out",
            "expert_parallel",
        )


def _divides(layers: Mapping[str, Layer], count: int) -> bool:
    return all(_divides_heads(layer.attention, count) for layer in layers.values())


def _divides_heads(block: object, count: int) -> bool:
    """Whether each rank gets whole groups of query heads, or the same part of one group as others."""
    if isinstance(block, LatentAttention):
        return count <= block.heads
    assert isinstance(block, Attention)
    return count <= block.kv_heads or not (count % block.kv_heads or block.heads % count)
