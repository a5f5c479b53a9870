"""POST /v1/responses: OpenAI's newer interface, for text. Nothing is stored: a request has the whole conversation."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest
from pydantic import BaseModel, ConfigDict, Field

from ringkv.base.errors import InvalidRequest, Unsupported
from ringkv.base.events import FinishReason
from ringkv.server.api.chat import answer_chat
from ringkv.server.api.documents import answers
from ringkv.server.api.message_builder import MessageBuilder
from ringkv.server.protocol.errors import body_of
from ringkv.server.protocol.stream import event
from ringkv.server.run.answer import JSON, Formatter, collected
from ringkv.server.run.generation import OutputStream, TokenOutput
from ringkv.server.run.refusals import OF_COMPLETIONS, refuse_unsupported
from ringkv.server.run.rendered_chat import EFFORT, RenderedChat
from ringkv.server.run.requests import sampling_defaults
from ringkv.server.run.schemas import ChatBody, Effort, GenerationBody, Int64, ResponseFormat, SentMessage
from ringkv.server.run.serving import Models, Serving
from ringkv.server.run.usage import UsageCounter
from ringkv.text.generation_config import Sampling

Name = Annotated[str, Field(max_length=64)]


class TextFormat(BaseModel):
    """`text.format`: like a chat's `response_format`, with the schema a level higher."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    document: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class TextOptions(BaseModel):
    format: TextFormat | None = None


class ReasoningOptions(BaseModel):
    effort: Effort | None = None


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
    reasoning: ReasoningOptions | None = None

    @property
    def format(self) -> ResponseFormat | None:
        sent = self.text.format if self.text else None
        if sent is None:
            return None
        if sent.type == "json_schema" and sent.document is None:
            raise InvalidRequest("text.format is json_schema without a schema; send one", "text")
        schema = None if sent.document is None else {"name": sent.name, "schema": sent.document}
        same = {"schema": sent.document} if sent.type == "json_object" else {"json_schema": schema}
        return ResponseFormat.model_validate({"type": sent.type, **same})


class ModelResponse(BaseModel):
    """Response of /v1/responses; OpenAI's reference describes the other fields."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    status: Literal["completed", "incomplete"]
    output: list[dict[str, Any]]
    usage: dict[str, Any]


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
INCOMPLETE_REASONS: Mapping[FinishReason, str] = {"length": "max_output_tokens"}  # OpenAI has no reason for an abort


def responses_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", summary="Create a response", responses=answers(ModelResponse))
    async def respond(body: ResponsesBody, http: HTTPRequest) -> Response:
        serving = models.find(body.model)
        refuse_unsupported(body, UNSUPPORTED_HERE)
        for name, here in NAMES_HERE.items():
            if (body.model_extra or {}).get(name) is not None:
                raise Unsupported(f"{name} is not a field of /v1/responses; use {here}", name)
        rendered = await asyncio.to_thread(_render, serving, body)
        formatter = ResponsesFormatter(serving, body, rendered)
        return await answer_chat(serving, http, body, rendered, body.max_output_tokens, formatter)

    return router


def _render(serving: Serving, body: ResponsesBody) -> RenderedChat:
    """Render the conversation as a chat. InvalidRequest names an item of `input` instead of an item of `messages`."""
    try:
        effort = body.reasoning.effort if body.reasoning else None
        chat = ChatBody(
            messages=chat_messages(body), parse_special_tokens=body.parse_special_tokens, reasoning_effort=effort
        )
        return RenderedChat.of(serving, chat, serving.engine.limits.longest_prompt)
    except InvalidRequest as error:
        before = 1 if body.instructions else 0  # messages that are not items of `input`
        match = re.fullmatch(r"messages(?:\[(\d+)\](.*))?", error.param or "")
        if match is not None:
            error.param = "input" if match[1] is None else f"input[{int(match[1]) - before}]{match[2]}"
        elif error.param == EFFORT:
            error.param = "reasoning.effort"
        raise


def chat_messages(body: ResponsesBody) -> list[SentMessage]:
    """Return the conversation as a chat's messages."""
    first = [{"role": "system", "content": body.instructions}] if body.instructions else []
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    return [*first, *(_message(item, number) for number, item in enumerate(items))]


def _message(item: SentMessage, number: int) -> SentMessage:
    """Convert an item of `input` to a chat's message."""
    if item.get("type") not in (None, "message"):
        text = f"input contains an item of type {item['type']!r}; only messages are supported"
        raise Unsupported(text, f"input[{number}].type")
    content = item.get("content")
    if isinstance(content, list):
        texts = [isinstance(part, dict) and part.get("type") in ("input_text", "output_text") for part in content]
        parts = zip(content, texts, strict=True)
        content = [{"type": "text", "text": part.get("text")} if is_text else part for part, is_text in parts]
    return {"role": item.get("role"), "content": content}


def request_fields(body: ResponsesBody, recommended: Sampling) -> dict[str, Any]:
    """Return the request's fields that the response repeats. recommended: as in `LoadedModel.sampling`."""
    defaults = {"temperature": 1.0, "top_p": 1.0, **sampling_defaults(body, recommended)}
    format_ = body.text.format if body.text else None
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "temperature": defaults["temperature"] if body.temperature is None else body.temperature,
        "top_p": defaults["top_p"] if body.top_p is None else body.top_p,
        "text": {"format": format_.model_dump(by_alias=True, exclude_none=True) if format_ else {"type": "text"}},
    }


class ResponsesFormatter(Formatter):
    def __init__(self, serving: Serving, body: ResponsesBody, rendered: RenderedChat) -> None:
        super().__init__("resp_", serving, body, rendered.reader)
        self._item_id = self.id.replace("resp_", "msg_")
        self._request_fields, self._builder = request_fields(body, serving.sampling), MessageBuilder()
        self._position = {"item_id": self._item_id, "output_index": 0, "content_index": 0}  # of the text in the output
        self._numbers = count()

    async def complete(self, stream: OutputStream, counter: UsageCounter) -> JSON:
        (outputs,) = await collected(stream, counter)
        text = self._builder.complete(outputs)["content"] or ""
        return self._response(text, outputs[-1], counter)

    async def events(self, stream: OutputStream, counter: UsageCounter) -> AsyncGenerator[bytes, None]:
        """Yield named events, one text delta per token; those of a batch of tokens are joined."""
        text = ""
        last: TokenOutput | None = None
        async with aclosing(stream):
            async for batch in stream:
                events = self._opening() if last is None else []
                for index, last in batch:
                    counter.add(index, last)
                    delta = self._builder.delta(last).get("content") or ""
                    text += delta
                    name = "response.output_text.delta"
                    events.append(self._event(name, **self._position, delta=delta, logprobs=[]))
                yield b"".join(events)
        assert last is not None
        response = self._response(text, last, counter)
        yield self._event("response.output_text.done", **self._position, text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._position, part=_text(text))
        yield self._event("response.output_item.done", output_index=0, item=response["output"][0])
        yield self._event(f"response.{response['status']}", response=response)

    def error(self, error: Exception) -> bytes:
        """Return the event of an error."""
        body = body_of(error)["error"]
        return self._event("error", **{name: body[name] for name in ("code", "message", "param")})

    def _opening(self) -> list[bytes]:
        response = self._envelope("in_progress", [])
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", output_index=0, item=self._item([], "in_progress")),
            self._event("response.content_part.added", **self._position, part=_text("")),
        ]

    def _event(self, name: str, **fields: Any) -> bytes:
        return event({"type": name, "sequence_number": next(self._numbers), **fields}, name)

    def _response(self, text: str, last: TokenOutput, counter: UsageCounter) -> JSON:
        assert last.finish is not None
        reason = INCOMPLETE_REASONS.get(last.finish.reason)
        status = "completed" if last.finish.reason == "stop" else "incomplete"
        usage = counter.usage()
        details = usage.get("prompt_tokens_details", {"cached_tokens": 0})
        return self._envelope(status, [self._item([_text(text)], status)]) | {
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": details,
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._builder.reasoning_tokens},
                "total_tokens": usage["total_tokens"],
                "kv": usage.get("kv"),
            },
        }

    def _envelope(self, status: str, output: Sequence[JSON]) -> JSON:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": list(output),
            "error": None,
            "incomplete_details": None,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "tool_choice": "none",
            "tools": [],
            "usage": None,
            **self._request_fields,
        }

    def _item(self, content: Sequence[JSON], status: str) -> JSON:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": list(content)}


def _text(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
