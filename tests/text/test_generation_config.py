import json
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.errors import BadWeights
from ringkv.text.generation_config import sampling_of


@pytest.mark.parametrize(
    ("file", "sampling"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "temperature": 0.6, "top_k": 20, "min_p": None}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": True, "top_p": 0.95}, {"top_p": 0.95}),
        ({"do_sample": False, "top_p": 0.95}, {"temperature": 0.0}),
        (
            {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1},
            {"temperature": 0.0, "repetition_penalty": 1.1},
        ),
    ],
)
def test_a_model_recommends_what_its_file_has(file: dict[str, Any], sampling: dict[str, float], tmp_path: Path) -> None:
    assert sampling_of(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    assert sampling_of(tmp_path) == sampling


@pytest.mark.parametrize("file", [{"temperature": -1}, {"top_p": 2.0}, {"top_k": "many"}])
def test_a_bad_value_is_refused_with_the_file(file: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    with pytest.raises(BadWeights, match=r"generation_config\.json"):
        sampling_of(tmp_path)
