import jsonschema
import pytest

from bench.structured import _checked, fitting, schemas
from ringkv.text.grammar import json_schema


def test_schemas_are_valid_and_the_same_on_every_call() -> None:
    made = schemas(20)
    assert made == schemas(20)
    assert len(made) == 20
    for schema in made:
        jsonschema.Draft202012Validator.check_schema(schema)
        assert json_schema(schema)


@pytest.mark.parametrize(("text", "result"), [("3", "fits"), ("7", "WRONG"), ("3 4", "WRONG"), ('"3"', "WRONG")])
def test_a_document_is_checked_by_another_library(text: str, result: str) -> None:
    assert _checked({"type": "integer", "maximum": 5}, text)[0] == result


def test_refused_schemas_do_not_count_among_documents_that_fit() -> None:
    assert fitting({"fits": 6, "shortened": 3, "refused": 90, "WRONG": 1}) == 0.9
