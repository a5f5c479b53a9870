import json
from typing import Any

import pytest
from llguidance import LLMatcher

from ringkv.text.grammar import json_schema
from ringkv.text.schemas import FORMATS, closed, without_annotations

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**OPEN, "additionalProperties": False}
ANY = {"type": "object"}


@pytest.mark.parametrize("name", [*sorted(FORMATS), "password", "binary", "path", "regex", "json-pointer"])
def test_formats_are_enforced_or_annotations(name: str) -> None:
    schema = {"type": "string", "format": name}
    enforced = not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert enforced == (name in FORMATS) == (without_annotations(schema) == schema)
    assert not LLMatcher.validate_grammar(json_schema({"type": "array", "items": {"anyOf": [schema]}}))


def test_only_keywords_are_annotations() -> None:
    schema = {"properties": {"format": {"const": {"format": "path"}}}, "enum": [{"format": "path"}]}
    assert without_annotations(schema) == schema


@pytest.mark.parametrize("value", [["email"], {"email": 1}, None, 1])
def test_a_format_that_is_not_a_name_is_an_annotation(value: Any) -> None:
    assert without_annotations({"properties": {"a": {"format": value}}}) == {"properties": {"a": {}}}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (OPEN, CLOSED),
        ({}, {"additionalProperties": False}),
        (ANY, {**ANY, "additionalProperties": False}),
        ({**OPEN, "additionalProperties": True}, {**OPEN, "additionalProperties": True}),
        ({**OPEN, "anyOf": [{"required": ["a"]}]}, {**OPEN, "anyOf": [{"required": ["a"]}]}),
        ({"allOf": [OPEN, OPEN]}, {"allOf": [OPEN, OPEN]}),
        (
            {"properties": {"x": OPEN, "list": {"items": OPEN}, "any": ANY}, "$defs": {"y": OPEN}},
            {
                "properties": {"x": CLOSED, "list": {"items": CLOSED}, "any": ANY},
                "$defs": {"y": CLOSED},
                "additionalProperties": False,
            },
        ),
    ],
)
def test_objects_of_tools_are_closed_unless_they_say_otherwise(sent: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(sent) == expected
