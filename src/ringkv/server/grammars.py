"""What an answer must be, from the fields that say so, as a grammar."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.server.schemas import GenerationBody
from ringkv.server.serving import Serving
from ringkv.text import grammar

GUIDED = "guided_"  # what vLLM calls the same kinds outside `structured_outputs`


async def grammar_of(serving: Serving, body: GenerationBody, called: str = "") -> str:
    """The grammar of an answer, "" where it may be anything; `called`, one that the tools have asked for.

    Raises InvalidRequest for one that cannot be used: it is tried here, so that the engine never meets it.
    """
    asked = [*_asked(body), *([("tool_choice", called)] if called else [])]
    if len(asked) > 1:
        both = " and ".join(field for field, _ in asked)
        raise InvalidRequest(f"{both} both say what the answer must be; send one of them", asked[1][0])
    for field, one in asked:
        try:
            await asyncio.to_thread(serving.guides.check, one)
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error}", field) from error
    return asked[0][1] if asked else ""


def _asked(body: GenerationBody) -> Iterator[tuple[str, str]]:
    """Field and grammar of all that the body asks for."""
    if body.response_format is not None and body.response_format.type != "text":
        yield "response_format", _of_format(body)
    for kind, value in (body.structured_outputs or {}).items():
        if value is not None:
            yield "structured_outputs", _written(kind, value, "structured_outputs")
    for kind in KINDS:
        if (value := (body.model_extra or {}).get(GUIDED + kind)) is not None:
            yield GUIDED + kind, _written(kind, value, GUIDED + kind)


def _of_format(body: GenerationBody) -> str:
    asked = body.response_format
    assert asked is not None
    if asked.type == "json_object":
        return grammar.json_object()
    if asked.json_schema is None:
        raise InvalidRequest("response_format is json_schema without a json_schema; send one", "response_format")
    return grammar.json_schema(asked.json_schema.document, "response_format")


def _written(kind: str, value: Any, field: str) -> str:
    if kind not in KINDS:
        raise InvalidRequest(f"{field} asks for {kind!r}; it may ask for one of {', '.join(KINDS)}", field)
    type_, write = KINDS[kind]
    if not isinstance(value, type_):
        raise InvalidRequest(f"{field}: {kind} is a {type(value).__name__}, which it cannot be", field)
    return write(value, field)


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
