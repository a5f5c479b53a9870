"""Builds an answer's grammar from `response_format`, `structured_outputs`, `guided_*` and required tool calls."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import Request as HTTPRequest

from ringkv.base.errors import InvalidRequest, QueueFull
from ringkv.server.protocol.stream import until_disconnected
from ringkv.server.run.rendered_chat import AllowedCalls, RenderedChat
from ringkv.server.run.schemas import GenerationBody, ResponseFormat
from ringkv.server.run.serving import Serving
from ringkv.text import grammar

GUIDED = "guided_"  # prefix of vLLM's older fields for the same kinds


async def grammar_of(
    serving: Serving, http: HTTPRequest, body: GenerationBody, chat: RenderedChat | None = None
) -> str:
    """Return the grammar of an answer, "" if it is unconstrained. The answer to a chat may reason first.

    A required tool call is the whole answer and overrides `response_format`. The grammar is checked here, so that
    the engine never gets a bad grammar. Raises InvalidRequest, QueueFull if too many wait for their check, and
    Disconnected.
    """
    calls = chat.calls if chat else None
    try:
        grammars = await asyncio.to_thread(lambda: [*_grammars(body, calls)])
    except RecursionError as error:
        raise InvalidRequest(
            "a schema is nested too deeply; flatten it", "tools" if calls else body.format_field
        ) from error
    if len(grammars) > 1:
        fields = " and ".join(field for field, _ in grammars)
        raise InvalidRequest(f"{fields} each constrain the answer; send only one of them", grammars[1][0])
    if not grammars:
        return ""
    field, source = grammars[0]
    if chat:
        source = chat.constrained(source)
    try:
        await until_disconnected(http.receive, _check(serving, source))
    except InvalidRequest as error:
        raise InvalidRequest(f"{field}: {error}", field) from error
    return source


async def _check(serving: Serving, source: str) -> None:
    try:
        check = serving.guides.check_soon(source)
    except QueueFull:
        serving.metrics.server.rejected("queue_grammars")
        raise
    try:
        await asyncio.wrap_future(check)
    finally:
        serving.guides.give_up(check)


def _grammars(body: GenerationBody, calls: AllowedCalls | None) -> Iterator[tuple[str, str]]:
    """Yield the grammars of a body, each with its field. If tools may be called, a call may stand for the document."""
    if calls and calls.required:
        yield "tool_choice", calls.format.grammar(calls.schemas)
    elif (requested := body.format) is not None and requested.type != "text":
        field, schema = body.format_field, _schema_of(requested, body.format_field)
        yield field, calls.format.grammar(calls.schemas, schema) if calls else grammar.json_schema(schema, field)
    extra = body.model_extra or {}
    sent = [("structured_outputs", *item) for item in (body.structured_outputs or {}).items()]
    for field, name, value in [*sent, *((GUIDED + name, name, extra.get(GUIDED + name)) for name in KINDS)]:
        if value is not None and value is not False:  # False has no effect
            yield field, _grammar_for(name, value, field)


def _schema_of(sent: ResponseFormat, field: str) -> grammar.JSONSchema:
    if sent.type == "json_object":
        return grammar.ANY_OBJECT if sent.document is None else sent.document
    if sent.json_schema is None:
        raise InvalidRequest(f"{field} is json_schema without a json_schema; send one", field)
    if sent.json_schema.document is False:
        raise InvalidRequest(f"{field} has the JSON schema false, which no document fits; leave it out", field)
    return sent.json_schema.document


def _grammar_for(name: str, value: Any, field: str) -> str:
    if name not in KINDS:
        raise InvalidRequest(f"{field} has the unknown kind {name!r}; use one of {', '.join(KINDS)}", field)
    types, build = KINDS[name]
    if not isinstance(value, types):
        raise InvalidRequest(f"{field}: {name} cannot be a {type(value).__name__}", field)
    try:
        return build(value, field)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{field} contains half of a surrogate pair: {error}", field) from error


def _schema(value: Any, field: str) -> str:
    """Return the grammar of a JSON schema, which may be sent as text."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} is not JSON: {error}", field) from error
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{field} is not a JSON schema; send an object", field)
    return grammar.json_schema(schema, field)


Build = Callable[[Any, str], str]
KINDS: Mapping[str, tuple[type | tuple[type, ...], Build]] = {
    "json": ((dict, str, bool), _schema),
    "json_object": (bool, lambda value, field: grammar.json_object()),
    "regex": (str, grammar.regex),
    "choice": (list, grammar.choice),
    "grammar": (str, grammar.lark_or_gbnf),
}
