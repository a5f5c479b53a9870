"""The weights that blocks declare, checked by what the blocks compute with them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ringkv.kernels.attended import Attended
from ringkv.models.blocks import attention, feed_forward
from ringkv.models.config import ModelConfig, parse_config
from ringkv.models.layer import Attention, FeedForward
from ringkv.models.rotary import rotation
from ringkv.models.weights import CheckpointTensor, Declared

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 6,
    "max_position_embeddings": 4096,
}
RANKS = 2
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3")


def attend(q: Tensor, k: Tensor, v: Tensor) -> Attended:
    scores = torch.einsum("nhgd,mhd->hgnm", q, k)
    out = torch.einsum("hgnm,mhd->nhgd", scores.softmax(-1), v)
    return Attended(out, scores.logsumexp(-1).permute(2, 0, 1))


def stacked(parts: list[Tensor], axis: int | str | None, rank: int | None) -> Tensor:
    """Stack one weight; a rank gets its share of each part."""
    if rank is None or not isinstance(axis, int):
        return torch.cat(parts)
    return torch.cat([part.chunk(RANKS, axis)[rank] for part in parts])


def made(declared: Declared, rank: int | None) -> dict[str, Tensor]:
    """Return random weights, the same parts for every rank."""
    generator = torch.Generator().manual_seed(5)

    def random(part: CheckpointTensor) -> Tensor:
        return torch.randn(part.shape, generator=generator, dtype=torch.float64)

    return {
        name: stacked([random(part) for part in weight.parts], weight.shard, rank) for name, weight in declared.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_that_split_the_declared_axes_add_up_to_the_whole(family: str) -> None:
    config = parse_config({"architectures": [f"{family}ForCausalLM"], **SIZES})
    layer, declared = config.layers[config.kinds[0]], config.layer_weights(0)
    x = torch.randn(7, 24, dtype=torch.float64)
    angles = rotation(torch.arange(7), torch.rand(3), 1.0, torch.float64)

    def outputs(rank: int | None) -> tuple[Tensor, Tensor]:
        part = RANKS if rank is not None else 1
        block, between = layer.attention, layer.feed_forward
        assert isinstance(block, Attention)
        assert isinstance(between, FeedForward)
        weights = made(declared, rank)
        own = replace(
            layer,
            attention=replace(block, heads=block.heads // part, kv_heads=block.kv_heads // part),
            feed_forward=replace(between, intermediate=between.intermediate // part),
        )
        return attention(own, x, angles, weights, attend), feed_forward(own, x, weights)

    shares = [outputs(rank) for rank in range(RANKS)]
    for whole, *parts in zip(outputs(None), *shares, strict=True):
        torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_and_biases_of_their_rows_are_split_and_other_biases_are_the_first_ranks(family: str) -> None:
    config: ModelConfig = parse_config(
        {"architectures": [f"{family}ForCausalLM"], **SIZES, "attention_bias": True, "mlp_bias": True}
    )
    shards = {name: weight.shard for name, weight in config.layer_weights(0).items()}
    expected = {"qkv": 0, "qkv_bias": 0, "output": 1, "gate_up": 0, "gate_up_bias": 0, "down": 1}
    expected |= {"output_bias": "first", "down_bias": "first"}
    assert {name: axis for name, axis in shards.items() if axis is not None} == {
        name: axis for name, axis in expected.items() if name in shards
    }
