"""gguf_routers: how a GGUF's router chooses experts, as config.json has it."""

from collections.abc import Callable, Mapping
from typing import Any

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF

RouterSettings = Callable[[GGUF, str], dict[str, Any]]
"""Returns the settings of a file, whose keys begin with a text. Raises UnsupportedModel or BadWeights."""

SOFTMAX: Mapping[str, tuple[int, ...]] = {
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0, 1),
}
"""Values that change nothing: softmax over all experts, not scaled. The first is the default."""


def softmax(normalised: bool = True) -> RouterSettings:
    """A softmax over all experts. normalised: the weights of the chosen ones add up to 1."""

    def settings(gguf: GGUF, kind: str) -> dict[str, Any]:
        check(gguf, kind, {**SOFTMAX, "expert_weights_norm": (normalised,)})
        return {}

    return settings


def softmax_of_chosen(gguf: GGUF, kind: str) -> dict[str, Any]:
    """A softmax over the chosen experts alone."""
    check(gguf, kind, {**SOFTMAX, "expert_gating_func": (0, 3), "expert_weights_norm": (True, False)})
    return {}


def check(gguf: GGUF, kind: str, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise UnsupportedModel for a key with another value than these; the first is the default."""
    for key, values in harmless.items():
        if (value := gguf.get(f"{kind}.{key}", values[0])) not in values:
            raise UnsupportedModel(
                f"{gguf.path} has {key} {shown(value)}, which ringkv does not have for {kind}; "
                "fetch this model as safetensors"
            )
