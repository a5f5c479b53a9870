"""What an answer must be, from the fields that say so, as a grammar."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.server.schemas import GenerationBody, ResponseFormat
from ringkv.server.serving import Serving
from ringkv.server.talk import Calls
from ringkv.text import grammar

GUIDED = "guided_"  # what vLLM calls the same kinds outside `structured_outputs`


async def grammar_of(serving: Serving, body: GenerationBody, calls: Calls | None = None) -> str:
    """The grammar of an answer, "" where it may be anything; `calls`, of tools that it may or must hold.

    A call that must be made is the whole answer, whatever its text should have been. Raises InvalidRequest for a
    grammar that cannot be used: it is tried here, so that the engine never meets it.
    """
    try:
        asked = [*_of_calls(calls), *_of_format(body, calls), *_of_extensions(body)]
    except RecursionError as error:
        raise InvalidRequest(
            "a schema is nested too deeply; flatten it", "tools" if calls else body.format_field
        ) from error
    if len(asked) > 1:
        both = " and ".join(field for field, _ in asked)
        raise InvalidRequest(f"{both} both say what the answer must be; send one of them", asked[1][0])
    for field, one in asked:
        try:
            await asyncio.to_thread(serving.guides.check, one)
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error}", field) from error
    return asked[0][1] if asked else ""


def _of_calls(calls: Calls | None) -> Iterator[tuple[str, str]]:
    if calls and calls.must:
        yield "tool_choice", calls.format.grammar(calls.schemas)


def _of_format(body: GenerationBody, calls: Calls | None) -> Iterator[tuple[str, str]]:
    """OpenAI's field; where tools may be called, a call may take the document's place."""
    asked = body.format
    if asked is None or asked.type == "text" or (calls and calls.must):
        return
    field = body.format_field
    schema = _schema_of(asked, field)
    yield field, calls.format.grammar(calls.schemas, schema) if calls else grammar.json_schema(schema, field)


def _of_extensions(body: GenerationBody) -> Iterator[tuple[str, str]]:
    """vLLM's fields, and the grammar that each asks for. False asks for nothing."""
    for kind, value in (body.structured_outputs or {}).items():
        if value is not None and value is not False:
            yield "structured_outputs", _written(kind, value, "structured_outputs")
    for kind in KINDS:
        value = (body.model_extra or {}).get(GUIDED + kind)
        if value is not None and value is not False:
            yield GUIDED + kind, _written(kind, value, GUIDED + kind)


def _schema_of(asked: ResponseFormat, field: str) -> grammar.JSONSchema:
    if asked.type == "json_object":
        return grammar.ANY_OBJECT if asked.document is None else asked.document
    if asked.json_schema is None:
        raise InvalidRequest(f"{field} is json_schema without a json_schema; send one", field)
    return asked.json_schema.document


def _written(kind: str, value: Any, field: str) -> str:
    if kind not in KINDS:
        raise InvalidRequest(f"{field} asks for {kind!r}; it may ask for one of {', '.join(KINDS)}", field)
    type_, write = KINDS[kind]
    if not isinstance(value, type_):
        raise InvalidRequest(f"{field}: {kind} is a {type(value).__name__}, which it cannot be", field)
    try:
        return write(value, field)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{field} holds half of a surrogate pair, which is no text: {error}", field) from error


def _schema(value: Any, field: str) -> str:
    """A schema, or its text."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidRequest(f"{field} is not JSON: {error}", field) from error
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{field} is no JSON schema, which is an object", field)
    return grammar.json_schema(schema, field)


def _choice(value: Any, field: str) -> str:
    if not all(isinstance(text, str) for text in value):
        raise InvalidRequest(f"{field} is a list of texts", field)
    return grammar.choice(value, field)


Write = Callable[[Any, str], str]
KINDS: Mapping[str, tuple[type | tuple[type, ...], Write]] = {
    "json": ((dict, str, bool), _schema),
    "json_object": (bool, lambda value, field: grammar.json_object()),
    "regex": (str, lambda value, field: grammar.regex(value)),
    "choice": (list, _choice),
    "grammar": (str, grammar.lark_or_gbnf),
}
