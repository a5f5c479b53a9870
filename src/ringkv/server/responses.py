"""POST /v1/responses: OpenAI's newer interface, for text. Nothing is stored: a request has the whole conversation."""

import asyncio
import re
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
from ringkv.server.int64 import Int64
from ringkv.server.message_builder import MessageBuilder
from ringkv.server.refusals import OF_COMPLETIONS, refuse_unsupported
from ringkv.server.rendered_chat import RenderedChat
from ringkv.server.requests import build_requests
from ringkv.server.responses_formatter import ResponsesFormatter
from ringkv.server.schemas import ChatBody, GenerationBody, ResponseFormat, SentMessage
from ringkv.server.serving import Models, Serving
from ringkv.server.stream import EventStream

Name = Annotated[str, Field(max_length=64)]


class TextFormat(BaseModel):
    """`text.format`: like a chat's `response_format`, with the schema one level higher."""

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

    input: str | Annotated[list[SentMessage], Field(min_length=1)]
    instructions: str | None = None
    parse_special_tokens: bool | None = None
    max_output_tokens: Int64 | None = None
    metadata: dict[Name, Annotated[str, Field(max_length=512)]] | None = None
    text: TextOptions | None = None

    @property
    def format(self) -> ResponseFormat | None:
        return _format(self.text)


# Fields that this endpoint refuses in addition -> the values, besides null, that have no effect.
UNSUPPORTED_HERE: Mapping[str, tuple[Any, ...]] = {
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
# Other endpoints' field names -> this endpoint's.
NAMES_HERE: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}


def responses_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", responses=answers(ModelResponse))
    async def respond(body: ResponsesBody, http: HTTPRequest) -> Response:
        serving = models.find(body.model)
        model = serving.name(body.model)
        refuse_unsupported(body, UNSUPPORTED_HERE)
        _refuse_other_names(body)
        rendered = await asyncio.to_thread(_render, serving, body)
        grammar = await grammar_of(serving, http, body)
        builder = MessageBuilder(rendered.constrained_by(grammar).reader())
        answer_id = f"resp_{uuid4().hex}"
        formatter = ResponsesFormatter(answer_id, int(time.time()), model, request_fields(body), builder)
        max_tokens = body.max_output_tokens
        if max_tokens is None:
            max_tokens = default_max_tokens(len(rendered.prompt), serving.engine.limits)
        requests = build_requests(
            serving, answer_id, body, [rendered.prompt], max_tokens, rendered.system_tokens, grammar
        )
        outputs, counter = start(serving, http, requests, continues=False)
        if body.stream:
            return EventStream(formatter.events(outputs, counter), done=b"", error=formatter.error)
        return JSONResponse(await until_disconnected(http.receive, formatter.complete(outputs, counter)))

    return router


def _refuse_other_names(body: ResponsesBody) -> None:
    for name, here in NAMES_HERE.items():
        if (body.model_extra or {}).get(name) is not None:
            raise Unsupported(f"{name} is not a field of /v1/responses; use {here}", name)


def _render(serving: Serving, body: ResponsesBody) -> RenderedChat:
    """Render the conversation as a chat. InvalidRequest names an item of `input` instead of one of `messages`."""
    try:
        chat = ChatBody(messages=chat_messages(body), parse_special_tokens=body.parse_special_tokens)
        return RenderedChat.of(serving, chat, serving.engine.limits.longest_prompt)
    except InvalidRequest as error:
        error.param = _param_here(error.param, before=1 if body.instructions else 0)
        raise


def _param_here(param: str | None, before: int) -> str | None:
    """Return `input` for `messages`. before: number of messages that are not items of it."""
    found = re.fullmatch(r"messages(?:\[(\d+)\](.*))?", param or "")
    if found is None:
        return param
    return "input" if found[1] is None else f"input[{int(found[1]) - before}]{found[2]}"


def chat_messages(body: ResponsesBody) -> list[SentMessage]:
    """Return the conversation as a chat's messages."""
    first = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        return [*first, {"role": "user", "content": body.input}]
    return [*first, *(_message(item, number) for number, item in enumerate(body.input))]


def _message(item: SentMessage, number: int) -> SentMessage:
    """Convert an item of `input` to a chat's message."""
    if item.get("type") not in (None, "message"):
        text = f"input contains an item of type {item['type']!r}; only messages are supported"
        raise Unsupported(text, f"input[{number}].type")
    content = item.get("content")
    if isinstance(content, list):
        content = [_part(part) for part in content]
    return {"role": item.get("role"), "content": content}


def _part(part: Any) -> Any:
    is_text = isinstance(part, dict) and part.get("type") in ("input_text", "output_text")
    return {"type": "text", "text": part.get("text")} if is_text else part


def _format(options: TextOptions | None) -> ResponseFormat | None:
    format_ = options.format if options else None
    if format_ is None:
        return None
    if format_.type == "json_schema" and format_.document is None:
        raise InvalidRequest("text.format is json_schema without a schema; send one", "text")
    if format_.type == "json_object":
        return ResponseFormat.model_validate({"type": format_.type, "schema": format_.document})
    schema = None if format_.document is None else {"name": format_.name, "schema": format_.document}
    return ResponseFormat.model_validate({"type": format_.type, "json_schema": schema})


def request_fields(body: ResponsesBody) -> dict[str, Any]:
    """Return the request's fields that the response repeats."""
    format_ = body.text.format if body.text else None
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "text": {"format": format_.model_dump(by_alias=True, exclude_none=True) if format_ else {"type": "text"}},
    }
