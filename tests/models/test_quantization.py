"""quantization_config of published checkpoints: read, or refused by quantiser and setting."""

from typing import Any

import pytest

from ringkv.base.errors import UnsupportedModel
from ringkv.models.config import parse_config
from tests.models.test_config import LLAMA

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "damp_percent": 0.01}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "actorder": "group"}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None, "output_activations": None}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": GROUP},
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "transform_config": {},
}
DYNAMIC = GROUP | {
    "weights": WEIGHTS | {"num_bits": 8, "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
}


def groups(**changes: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": GROUP | changes}}


@pytest.mark.parametrize(
    "settings",
    [
        AWQ,
        AWQ | {"version": "GEMM", "modules_to_not_convert": ["lm_head"]},
        AWQ | {"version": None, "format": "gemm", "checkpoint_format": "gemm"},
        GPTQ,
        GPTQ | {"format": "gptq_v2", "adapter": None},
        GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2", "pack_dtype": "int32", "dynamic": {"-:.*lm_head": {}}},
        COMPRESSED,
        COMPRESSED | {"format": "int-quantized", "config_groups": {"group_0": DYNAMIC}},
        COMPRESSED | {"sparsity_config": {"format": "dense"}},
        {"quant_method": "mxfp4"},
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
        {},
        None,
    ],
)
def test_settings_of_published_checkpoints_are_read_as_the_unquantised_model(settings: Any) -> None:
    assert parse_config(LLAMA | {"quantization_config": settings}) == parse_config(LLAMA)


@pytest.mark.parametrize(
    ("settings", "named", "supported"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'", "awq, gptq, compressed-tensors"),
        ({"bits": 4}, "'bits': 4", "awq, gptq, compressed-tensors"),
        ("awq", "'awq' is not", "awq, gptq"),
        ([4], r"\[4\]", "awq, gptq"),
        (AWQ | {"bits": 3}, "awq of 3 bits with bits 3", "bits 4"),
        (AWQ | {"version": "gemv"}, "awq of 4 bits with version 'gemv'", "version gemm"),
        (GPTQ | {"bits": 3}, "gptq of 3 bits with bits 3", "bits 4 or 8"),
        (GPTQ | {"bits": "4"}, "gptq with bits '4'", "bits 4 or 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'", "gptq and gptq_v2"),
        (GPTQ | {"format": "qqq"}, "format 'qqq'", "gptq and gptq_v2"),
        (GPTQ | {"rotation": "hadamard"}, "rotation 'hadamard'", "none"),
        (AWQ | {"checkpoint_format": "gemv_fast"}, "checkpoint_format 'gemv_fast'", "gemm"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format True", "none"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype 'int16'", "int32"),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic", "excluded"),
        (COMPRESSED | {"format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized", "int-quantized"),
        (COMPRESSED | {"quantization_status": "frozen"}, "'frozen'", "compressed"),
        (COMPRESSED | groups(weights=WEIGHTS | {"type": "float"}), "config_groups", "type int"),
        (COMPRESSED | groups(weights=WEIGHTS | {"num_bits": 2}), "config_groups", "num_bits 4 or 8"),
        (COMPRESSED | groups(weights=WEIGHTS | {"strategy": "block"}), "config_groups", "strategy group or channel"),
        (COMPRESSED | groups(weights=None), "config_groups", "type int"),
        (COMPRESSED | groups(input_activations={"dynamic": False}), "config_groups", "dynamic"),
        (COMPRESSED | groups(output_activations={"dynamic": True}), "config_groups", "activations"),
        (COMPRESSED | groups(format="float-quantized"), "config_groups", "type int"),
        (COMPRESSED | {"config_groups": {}}, "config_groups", "type int"),
        (COMPRESSED | {"config_groups": 3}, "config_groups 3", "type int"),
        (COMPRESSED | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme", "none"),
        (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config", "dense"),
        (COMPRESSED | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config", "none"),
        ({"quant_method": "fp8", "weight_block_size": None}, "weight_block_size None", "128"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size", "128"),
        ({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}, "e5m2", "e4m3"),
    ],
)
def test_other_settings_are_refused_with_what_is_supported(settings: Any, named: str, supported: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{named}.*ringkv reads .*{supported}"):
        parse_config(LLAMA | {"quantization_config": settings})
