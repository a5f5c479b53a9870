"""quantization: which quantised checkpoints are read, by the quantization_config of config.json. No torch.

`weights` reads the tensors. A setting that changes what they mean is refused by name.
"""

from collections.abc import Callable, Mapping
from operator import not_
from typing import Any

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.models.fields import Raw, Refusal
from ringkv.models.online import METHOD


def _among(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _excludes_only(dynamic: Any) -> bool:
    """Whether settings of single modules, by patterns, only leave some unquantised."""
    return not dynamic or all(pattern.startswith("-:") for pattern in dynamic)


FORMATS = ("pack-quantized", "int-quantized")
STRATEGIES = ("group", "channel")


def _are_integers(groups: Any) -> bool:
    """Whether all modules have integers of 4 or 8 bits, and activations that are quantised as they come, or not."""
    return bool(groups) and all(_is_integer(group) for group in groups.values())


def _is_integer(group: Any) -> bool:
    weights, inputs = group["weights"], group.get("input_activations") or {"dynamic": True}
    return (
        weights["type"] == "int"
        and weights["num_bits"] in (4, 8)
        and weights["strategy"] in STRATEGIES
        and inputs.get("dynamic") is True
        and not group.get("output_activations")
        and (group.get("format") or FORMATS[0]) in FORMATS
    )


_LAYOUT = ("format", "checkpoint_format")  # as GPTQModel writes them
READABLE: Mapping[str, tuple[Refusal, ...]] = {
    "fp8": (
        Refusal("fmt", _among(None, "e4m3"), "e4m3"),
        Refusal("weight_block_size", lambda value: list(value) == [128, 128], "[128, 128]"),
    ),
    "mxfp4": (),
    "awq": (
        Refusal("bits", _among(4), "4"),
        *(
            Refusal(name, lambda value: str(value or "gemm").lower() == "gemm", "gemm")
            for name in ("version", *_LAYOUT)
        ),
    ),
    "gptq": (
        Refusal("bits", _among(4, 8), "4 or 8"),
        *(Refusal(name, _among(None, "", "gptq", "gptq_v2"), "gptq and gptq_v2") for name in _LAYOUT),
        Refusal("is_marlin_format", not_, "none"),
        Refusal("pack_dtype", _among(None, "int32"), "int32"),
        *(Refusal(name, not_, "none") for name in ("adapter", "rotation")),
        Refusal("dynamic", _excludes_only, "modules that are excluded, but none with settings of its own"),
    ),
    "compressed-tensors": (
        Refusal("format", _among(*FORMATS, "mixed-precision"), " and ".join(FORMATS)),
        Refusal("quantization_status", _among(None, "compressed"), "compressed"),
        Refusal(
            "config_groups",
            _are_integers,
            "with weights of type int, num_bits 4 or 8, strategy group or channel, and activations that are dynamic if "
            "they are quantised",
        ),
        Refusal("kv_cache_scheme", not_, "none"),
        Refusal("sparsity_config", lambda value: (value or {}).get("format", "dense") == "dense", "dense"),
        Refusal("transform_config", lambda value: not value or not value.get("config_groups"), "none"),
    ),
    METHOD: (
        Refusal("bits", _among(4, 8, 16), "4, 8 or 16"),
        Refusal("online", lambda value: value.keys() <= {"down_proj", "o_proj"}, "of down_proj and o_proj"),
    ),
}
"""Settings by quant_method. Those that are not here change nothing, or only how the checkpoint was made."""


def refuse_quantization(raw: Raw) -> None:
    """Raise UnsupportedModel that names quantiser, setting and what is supported, unless the weights can be read."""
    settings = raw.get("quantization_config")
    if not settings:
        return
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if not isinstance(method, str) or method not in READABLE:
        raise UnsupportedModel(
            f"quantization_config {shown(method or settings)} is not implemented; ringkv reads {', '.join(READABLE)} "
            "and unquantised weights in safetensors, or a GGUF file"
        )
    bits = f" of {settings['bits']} bits" if isinstance(settings.get("bits"), int) else ""
    for refusal in READABLE[method]:
        if not refusal.allows(value := settings.get(refusal.setting)):
            raise UnsupportedModel(
                f"quantization_config {method}{bits} with {refusal.setting} {shown(value)} is not "
                f"implemented; of {method} in safetensors ringkv reads {refusal.setting} {refusal.supported}"
            )
