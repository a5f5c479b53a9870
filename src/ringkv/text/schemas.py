"""schemas: JSON schemas as clients send them, made ready for grammars."""

from collections.abc import Callable, Mapping
from typing import Any

FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
)
"""Formats of strings that llguidance enforces. Others are annotations, as JSON Schema 2020-12 has it."""

BY_NAME = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")  # keywords with named schemas
VALUES = ("const", "default", "enum", "examples")  # keywords whose values are documents
# An object with one of these may have properties that its own list does not name.
COMPOSED = ("$ref", "additionalProperties", "anyOf", "if", "not", "oneOf", "patternProperties", "unevaluatedProperties")

Schema = Mapping[str, Any]


def without_annotations(schema: Any) -> Any:
    """Return a schema without formats that are not enforced."""
    return _changed(schema, lambda part: {k: v for k, v in part.items() if k != "format" or str(v) in FORMATS})


def closed(schema: Schema) -> Schema:
    """Return the schema of a tool's arguments whose objects have no properties but those that they list.

    An object stays open if it says so, if it lists none, or if it is composed of several schemas. A tool without
    parameters takes no arguments.
    """
    merged: list[Schema] = []  # schemas with `allOf`, each part of which would exclude the others' properties

    def close(part: Schema) -> Schema:
        merged.extend([part] if "allOf" in part else [])
        is_open = "properties" in part and not any(keyword in part for keyword in COMPOSED)
        return {**part, "additionalProperties": False} if is_open else part

    nested = _changed(schema, close)
    if merged:
        return schema
    return nested if any(keyword in nested for keyword in COMPOSED) else {**nested, "additionalProperties": False}


def _changed(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return a schema after a change of itself and of all schemas in it, the innermost first."""
    if isinstance(schema, list):
        return [_changed(item, change) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    parts = {}
    for keyword, value in schema.items():
        if keyword in BY_NAME and isinstance(value, Mapping):
            parts[keyword] = {name: _changed(part, change) for name, part in value.items()}
        else:
            parts[keyword] = value if keyword in VALUES else _changed(value, change)
    return change(parts)
