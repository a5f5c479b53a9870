"""Grammars: what an answer must be, written as `SamplingParams.grammar` takes it.

    SamplingParams(grammar=json_schema({"type": "object", "properties": {"name": {"type": "string"}}}))

They are llguidance's: Lark's notation, with JSON Schema and regular expressions inside. It says in microseconds which
tokens may come next, without compiling a grammar for a vocabulary first, and names keywords that it does not enforce.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from ringkv.base.errors import InvalidRequest

# Documents are written as `json.dumps` does. Free white space would let a model go on with it for ever.
WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_OBJECT = {"type": "object"}
JSONSchema = Mapping[str, Any] | bool  # true is any document


def json_schema(schema: JSONSchema, field: str = "grammar") -> str:
    """A JSON document that fits the schema. Raises InvalidRequest, naming `field`, for what is no schema."""
    try:
        asked = json.dumps({} if schema is True else schema)
        return LLMatcher.grammar_from_json_schema(asked, overrides=WRITTEN)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"the JSON schema cannot be used: {error}", field) from error


def json_object() -> str:
    """Any JSON object."""
    return json_schema(ANY_OBJECT)


def as_written(schema: JSONSchema) -> str:
    """A schema for `%json` in Lark's notation, whose documents are written as those of `json_schema`."""
    if schema is False:
        raise InvalidRequest("the JSON schema is false, which no document fits; leave it out", "grammar")
    return json.dumps({**(schema if isinstance(schema, Mapping) else {}), "x-guidance": WRITTEN})


def regex(pattern: str) -> str:
    """A text that the whole pattern matches, in the notation of Rust's regex crate."""
    return LLMatcher.grammar_from_regex(pattern)


def choice(texts: Sequence[str], field: str = "grammar") -> str:
    """One of these texts."""
    if not texts:
        raise InvalidRequest(f"{field} names no text to choose from", field)
    return lark("start: " + " | ".join(map(json.dumps, texts)))


def lark(source: str) -> str:
    """Rules in Lark's notation; the text is `start`."""
    return LLMatcher.grammar_from_lark(source)


def lark_or_gbnf(source: str, field: str = "grammar") -> str:
    """The same, or in llama.cpp's GBNF, where it is `root`."""
    try:
        return lark(any_to_lark(source))
    except Exception as error:  # the converter's own class, or whatever a malformed text makes it stumble over
        raise InvalidRequest(f"{field} does not parse: {error}", field) from error
