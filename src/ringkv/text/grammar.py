"""Grammars that constrain an answer, for `SamplingParams.grammar`.

    SamplingParams(grammar=json_schema({"type": "object", "properties": {"name": {"type": "string"}}}))

Grammars are llguidance's: Lark syntax with embedded JSON Schema and regular expressions. llguidance computes a token
mask in microseconds without compiling the grammar for the vocabulary. It rejects keywords that it does not enforce.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from ringkv.base.errors import InvalidRequest
from ringkv.text.answers.spans import END_OF_THINK, THINK
from ringkv.text.schemas import without_annotations

# The format of `json.dumps`. With flexible white space a model could generate white space endlessly.
JSON_FORMAT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_OBJECT = {"type": "object"}
JSONSchema = Mapping[str, Any] | bool  # True allows any document
# Bounds the time to parse a grammar, which may grow with the square of its length (5,000 optional properties take
# 1.2 s), and the depth to which llguidance recurses: `text.guide` has a stack for a chain of references of this length.
LONGEST = 128 << 10  # characters


def json_schema(schema: JSONSchema, field: str = "grammar") -> str:
    """Return the grammar of documents that fit the schema. Raises InvalidRequest, naming `field`, for a bad schema."""
    try:
        text = json.dumps({} if schema is True else without_annotations(schema))
        return LLMatcher.grammar_from_json_schema(text, overrides=JSON_FORMAT)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"the JSON schema cannot be used: {error}", field) from error


def json_object() -> str:
    """Return the grammar of any JSON object."""
    return json_schema(ANY_OBJECT)


def schema_in_lark(schema: JSONSchema) -> str:
    """Return a schema for `%json` in Lark syntax; documents have the format of `json_schema`."""
    if schema is False:
        raise InvalidRequest("the JSON schema is false, which no document fits; leave it out", "grammar")
    known = without_annotations(schema) if isinstance(schema, Mapping) else {}
    return json.dumps({**known, "x-guidance": JSON_FORMAT})


def regex(pattern: str, field: str = "regex") -> str:
    """Return the grammar of texts that match the whole pattern, in the syntax of Rust's regex crate."""
    check_text(pattern, field)
    return LLMatcher.grammar_from_regex(pattern)


def choice(texts: Sequence[str], field: str = "grammar") -> str:
    """Return the grammar of exactly these texts."""
    if not texts:
        raise InvalidRequest(f"{field} has an empty list of choices; give at least one text", field)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{field} must be a list of strings", field)
    # A single terminal rather than alternatives of a rule, of which llguidance takes 2,000.
    words = " | ".join(json.dumps(text) for text in texts if text) or '""'
    return lark(f"start: CHOICE{'?' if '' in texts else ''}\nCHOICE: {words}")


def lark(source: str) -> str:
    """Return the grammar of rules in Lark syntax, with the start rule `start`."""
    return LLMatcher.grammar_from_lark(source)


def lark_or_gbnf(source: str, field: str = "grammar") -> str:
    """Return the grammar of rules in Lark syntax, or in llama.cpp's GBNF with the start rule `root`."""
    check_text(source, field)
    try:
        return lark(any_to_lark(source))
    except Exception as error:  # the converter raises its own class, and others for malformed text
        raise InvalidRequest(f"{field} does not parse: {error}", field) from error


def after_reasoning(grammar: str, opened: bool, begin: int | None = None, end: int | None = None) -> str:
    """Return the grammar of reasoning, whose text is free, and a text of `grammar` after it.

    opened: the prompt has begun the reasoning. Otherwise an answer may begin with it. begin, end: the tokens of the
    marks; None if the marks are ordinary text. The text of a token does not match it.
    """
    mark = json.dumps(THINK) if begin is None else f"<[{begin}]>"
    start = "reasoning document" if opened else f"({mark} reasoning)? document"
    suffix, token = (f"[suffix={json.dumps(END_OF_THINK)}]", "") if end is None else ("", f"<[{end}]>")
    rules = [f"start: {start}", f"reasoning: thought {token} SPACE", f"thought{suffix}: /(?s:.*)/"]
    return lark("\n".join(["%llguidance {}", *rules, "SPACE: /[ \\n]{0,4}/", f"document: {_nested(grammar)}"]))


def _nested(grammar: str) -> str:
    """Return a grammar, which is Lark or a list of one grammar in JSON, as the body of a rule."""
    if grammar.startswith("{"):
        (only,) = json.loads(grammar)["grammars"]
        if only["json_schema"] is not None:
            return f"%json {json.dumps(only['json_schema'])}"
        grammar = only["lark_grammar"]
    return f"%lark {{\n{grammar}\n}}"


def check_text(grammar: str, field: str = "grammar") -> None:
    """Raise InvalidRequest for a grammar that is too long to be parsed safely, or is not Unicode text."""
    if len(grammar) > LONGEST:
        raise InvalidRequest(
            f"{field} is too large: it has {len(grammar):,} characters, and up to {LONGEST:,} are parsed; "
            "use a smaller grammar or schema",
            field,
        )
    try:
        grammar.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{field} contains half of a surrogate pair: {error}", field) from error
