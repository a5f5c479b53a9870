"""How a model directory's weights are stored, by its settings and the names in its files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ringkv.plan.stored_bits import of_gguf_types, stored_as

GROUPS, WITH_MINIMUMS = "int8 in groups", "int8 in groups with minimums"


def _scheme(bits: int, strategy: str, symmetric: bool = True) -> dict[str, Any]:
    groups = {"group_0": {"weights": {"num_bits": bits, "strategy": strategy, "symmetric": symmetric}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        (None, "int8"),
        ({"quant_method": "mxfp4"}, GROUPS),
        ({"quant_method": "gptq", "bits": 8}, WITH_MINIMUMS),
        ({"quant_method": "gptq", "bits": 4}, "int8"),
        (_scheme(8, "group"), WITH_MINIMUMS),
        (_scheme(8, "channel"), "int8"),
        (_scheme(8, "channel", symmetric=False), WITH_MINIMUMS),
        (_scheme(4, "group"), "int8"),
        ({"quant_method": "ringkv-rotated", "bits": 8, "group_size": None}, "int8"),
    ],
)
def test_int8_weights_have_groups_if_the_quantiser_has(settings: Any, stored: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    assert stored_as(tmp_path, "int8") == stored
    assert stored_as(tmp_path, "int4") == "int4"


@pytest.mark.parametrize(("parts", "stored"), [(("q", "scale"), GROUPS), (("q", "least"), WITH_MINIMUMS)])
def test_a_file_of_groups_says_whether_some_have_minimums(parts: tuple[str, ...], stored: str, tmp_path: Path) -> None:
    save_file({f"m.{part}": torch.zeros(1) for part in parts}, tmp_path / "int8.groups")
    assert stored_as(tmp_path, "int8") == stored
    (tmp_path / "int4.groups").touch()
    assert stored_as(tmp_path, "int8") == WITH_MINIMUMS


@pytest.mark.parametrize(
    ("types", "stored"),
    [
        ({"F32", "Q4_K"}, "int8"),
        ({"F32", "Q8_0"}, GROUPS),
        ({"F32", "MXFP4"}, GROUPS),
        ({"Q8_0", "Q5_K"}, WITH_MINIMUMS),
        ({"Q6_K", "Q4_K"}, WITH_MINIMUMS),
    ],
)
def test_a_gguf_has_groups_by_the_types_of_its_tensors(types: set[str], stored: str) -> None:
    assert of_gguf_types(types) == stored
