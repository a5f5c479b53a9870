"""Online rotations in config.json."""

from typing import Any

import pytest

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.ranks import Rank
from ringkv.models.config import parse_config
from ringkv.models.online import METHOD, OnlineRotations
from tests.models.test_config import LLAMA


def rotated(down: Any = 8, heads: Any = 2, **changes: Any) -> dict[str, Any]:
    online = {"down_proj": down, "o_proj": heads}
    return LLAMA | {"quantization_config": {"quant_method": METHOD, "bits": 4, "online": online}} | changes


def test_the_layers_of_a_rotated_checkpoint_rotate_online() -> None:
    config = parse_config(rotated())
    assert config.online == OnlineRotations(down=8, heads=2)
    layer: Any = config.computed("global")
    assert (layer.feed_forward.rotated, layer.attention.rotated_heads) == (8, 2)


def test_the_layers_of_other_checkpoints_do_not() -> None:
    layer: Any = parse_config(LLAMA).computed("global")
    assert (layer.feed_forward.rotated, layer.attention.rotated_heads) == (1, 1)


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ({"down": 12}, "rotates 12 inputs of down_proj, a power of two is needed"),
        ({"down": 16}, "rotates 16 inputs of down_proj, which do not divide 200"),
        ({"heads": 4}, "rotates 4 inputs of o_proj, which do not divide 6"),
        ({"heads": "2"}, "config.json has o_proj '2'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadWeights, match=fault):
        parse_config(rotated(**sizes))


def test_rotations_that_are_not_implemented_are_refused() -> None:
    raw = rotated()
    raw["quantization_config"]["online"]["k_proj"] = 2
    with pytest.raises(UnsupportedModel, match=r"online .* is not implemented"):
        parse_config(raw)


def test_a_rotated_mixture_of_experts_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Experts"):
        parse_config(rotated(architectures=["MixtralForCausalLM"], num_local_experts=4, num_experts_per_tok=2))


def test_ranks_do_not_divide_a_rotated_checkpoint() -> None:
    with pytest.raises(UnsupportedModel, match="rotated checkpoints"):
        parse_config(rotated()).of_rank(Rank(0, 2), "memory")
