"""POST /v1/responses: OpenAI's newer interface, for text. Nothing is stored: each request brings all that was said."""

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ringkv.base.errors import InvalidRequest, Unsupported
from ringkv.server.answer import start
from ringkv.server.chat import default_max_tokens
from ringkv.server.disconnect import until_disconnected
from ringkv.server.documents import ModelResponse, answers
from ringkv.server.grammars import grammar_of
from ringkv.server.message import Message
from ringkv.server.refusals import OF_COMPLETIONS, refuse_unsupported
from ringkv.server.reply import Reply
from ringkv.server.requests import build_requests
from ringkv.server.schemas import ChatBody, GenerationBody, ResponseFormat, Turn
from ringkv.server.serving import Serving
from ringkv.server.stream import EventStream, named_event
from ringkv.server.talk import Talk
from ringkv.server.whole import Whole

Name = Annotated[str, Field(max_length=64)]


class TextFormat(BaseModel):
    """As `response_format` of a chat, its schema one level up."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    document: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class TextOptions(BaseModel):
    format: TextFormat | None = None


class ResponsesBody(GenerationBody):
    prompt_field = "input"
    format_field = "text"
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": "Name three rivers of Europe.", "temperature": 0}]}
    )

    input: str | Annotated[list[Turn], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    metadata: dict[Name, Annotated[str, Field(max_length=512)]] | None = None
    text: TextOptions | None = None

    @property
    def format(self) -> ResponseFormat | None:
        return _format(self.text)


# What cannot be served here, beside values that ask for nothing.
ALSO: Mapping[str, tuple[Any, ...]] = {
    **OF_COMPLETIONS,
    "background": (False,),
    "conversation": (),
    "include": ([],),
    "logprobs": (False,),
    "n": (1,),
    "previous_response_id": (),
    "prompt": (),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
# What other endpoints call fields of this one.
CALLED_HERE: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}


def responses_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", responses=answers(ModelResponse))
    async def respond(body: ResponsesBody, http: HTTPRequest) -> Response:
        model = serving.model(body.model)
        refuse_unsupported(body, ALSO)
        _refuse_other_names(body)
        talk = await asyncio.to_thread(_talk, serving, body)
        grammar = await grammar_of(serving, body)
        reader = talk.held_to(grammar).reader()
        answer_id = f"resp_{uuid4().hex}"
        form = Reply(answer_id, int(time.time()), model, told(body), Message(reader))
        most = default_max_tokens(len(talk.prompt), serving.engine.limits)
        max_tokens = most if body.max_output_tokens is None else body.max_output_tokens
        requests = build_requests(serving, answer_id, body, [talk.prompt], max_tokens, talk.system, grammar)
        pieces, tally = start(serving, http, requests, continues=False)
        if body.stream:
            return EventStream(form.events(pieces, tally), named_event, done=b"")
        return JSONResponse(await until_disconnected(http.receive, form.whole(pieces, tally)))

    return router


def _refuse_other_names(body: ResponsesBody) -> None:
    for name, here in CALLED_HERE.items():
        if (body.model_extra or {}).get(name) is not None:
            raise Unsupported(f"{name} is no field of /v1/responses; {here} says it there", name)


def _talk(serving: Serving, body: ResponsesBody) -> Talk:
    """Raises InvalidRequest, naming the field that a chat calls `messages` as we do."""
    try:
        return Talk.of(serving, ChatBody(messages=turns_of(body)), serving.engine.limits.longest_prompt)
    except InvalidRequest as error:
        error.param = body.prompt_field if error.param == ChatBody.prompt_field else error.param
        raise


def turns_of(body: ResponsesBody) -> list[Turn]:
    """The conversation, as a chat's messages."""
    first = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        return [*first, {"role": "user", "content": body.input}]
    return [*first, *(_turn(item) for item in body.input)]


def _turn(item: Turn) -> Turn:
    """An item of `input` as a message of a chat."""
    if item.get("type") not in (None, "message"):
        raise Unsupported(f"input holds an item of type {item['type']!r}; only messages are served", "input")
    content = item.get("content")
    if isinstance(content, list):
        content = [_part(part) for part in content]
    return {"role": item.get("role"), "content": content}


def _part(part: Any) -> Any:
    is_text = isinstance(part, dict) and part.get("type") in ("input_text", "output_text")
    return {"type": "text", "text": part.get("text")} if is_text else part


def _format(options: TextOptions | None) -> ResponseFormat | None:
    asked = options.format if options else None
    if asked is None:
        return None
    if asked.type == "json_schema" and asked.document is None:
        raise InvalidRequest("text.format is json_schema without a schema; send one", "text")
    if asked.type == "json_object":
        return ResponseFormat.model_validate({"type": asked.type, "schema": asked.document})
    schema = None if asked.document is None else {"name": asked.name, "schema": asked.document}
    return ResponseFormat.model_validate({"type": asked.type, "json_schema": schema})


def told(body: ResponsesBody) -> dict[str, Any]:
    """What an answer says of its request."""
    asked = body.text.format if body.text else None
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "text": {"format": asked.model_dump(by_alias=True, exclude_none=True) if asked else {"type": "text"}},
    }
