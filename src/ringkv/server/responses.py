"""POST /v1/responses: OpenAI's newer interface, for text. Nothing is stored: each request brings all that was said."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ringkv.base.errors import InvalidRequest, Unsupported
from ringkv.server.answer import JSON, start
from ringkv.server.chat import default_max_tokens
from ringkv.server.disconnect import until_disconnected
from ringkv.server.documents import ModelResponse, answers
from ringkv.server.generation import Piece, Pieces
from ringkv.server.grammars import grammar_of
from ringkv.server.message import Message
from ringkv.server.refusals import refuse_unsupported
from ringkv.server.requests import build_requests
from ringkv.server.schemas import ChatBody, GenerationBody, ResponseFormat, Turn, Whole
from ringkv.server.serving import Serving
from ringkv.server.stream import EventStream, named_event
from ringkv.server.talk import Talk
from ringkv.server.usage import Tally


class TextFormat(BaseModel):
    """As `response_format` of a chat, its schema one level up."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    document: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class TextOptions(BaseModel):
    format: TextFormat | None = None


class ResponsesBody(GenerationBody):
    prompt_field = "input"
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": "Name three rivers of Europe.", "temperature": 0}]}
    )

    input: str | Annotated[list[Turn], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    metadata: dict[str, Any] | None = None
    text: TextOptions | None = None

    @property
    def choices(self) -> int:
        return 1

    @property
    def logprob_count(self) -> int | None:
        return None


# What cannot be served here, beside values that ask for nothing.
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "include": ([],),
    "previous_response_id": (),
    "prompt": (),
    "tools": ([],),
    "truncation": ("disabled",),
}
WHY = {"length": "max_output_tokens", "abort": "aborted"}  # an answer is not complete


def responses_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", responses=answers(ModelResponse))
    async def respond(body: ResponsesBody, http: HTTPRequest) -> Response:
        model = serving.model(body.model)
        refuse_unsupported(body, HARMLESS)
        body = body.model_copy(update={"response_format": _format(body.text)})
        talk = await asyncio.to_thread(Talk.of, serving, ChatBody(messages=turns_of(body)))
        grammar = await grammar_of(serving, body)
        form = Reply(f"resp_{uuid4().hex}", int(time.time()), model, body, Message(talk.reader()))
        most = default_max_tokens(len(talk.prompt), serving.engine.limits)
        max_tokens = most if body.max_output_tokens is None else body.max_output_tokens
        requests = build_requests(serving, form.id, body, [talk.prompt], max_tokens, talk.system, grammar)
        pieces, tally = start(serving, http, requests, continues=False)
        if body.stream:
            return EventStream(form.events(pieces, tally), named_event, done=b"")
        return JSONResponse(await until_disconnected(http.receive, form.whole(pieces, tally)))

    return router


def turns_of(body: ResponsesBody) -> list[Turn]:
    """The conversation, as a chat's messages."""
    first = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        return [*first, {"role": "user", "content": body.input}]
    return [*first, *(_turn(item) for item in body.input)]


def _turn(item: Turn) -> Turn:
    """An item of `input` as a message of a chat."""
    if item.get("type", "message") != "message":
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
    schema = None if asked.document is None else {"name": asked.name, "schema": asked.document}
    return ResponseFormat.model_validate({"type": asked.type, "json_schema": schema})


@dataclass(frozen=True)
class Reply:
    id: str
    created: int
    model: str
    asked: ResponsesBody
    message: Message
    _numbers: "count[int]" = field(default_factory=count)

    async def whole(self, pieces: Pieces, tally: Tally) -> JSON:
        async with aclosing(pieces):
            said = [piece async for _, piece in self._counted(pieces, tally)]
        text = self.message.whole(said)["content"] or ""
        return self._response(text, said[-1], tally)

    async def events(self, pieces: Pieces, tally: Tally) -> AsyncGenerator[JSON, None]:
        """Named events, of which the ones with text are one for each token."""
        text, last, place = "", None, self._place
        async with aclosing(pieces):
            async for _, piece in self._counted(pieces, tally):
                if last is None:
                    for event in self._opening():
                        yield event
                delta, last = self.message.delta(piece).get("content") or "", piece
                text += delta
                yield self._event("output_text.delta", **place, delta=delta, logprobs=[])
        assert last is not None
        yield self._event("output_text.done", **place, text=text, logprobs=[])
        yield self._event("content_part.done", **place, part=_text(text))
        yield self._event("output_item.done", output_index=0, item=self._item([_text(text)], "completed"))
        response = self._response(text, last, tally)
        yield self._event(str(response["status"]), response=response)

    def _opening(self) -> Sequence[JSON]:
        begun = self._envelope("in_progress", [])
        return [
            self._event("created", response=begun),
            self._event("in_progress", response=begun),
            self._event("output_item.added", output_index=0, item=self._item([], "in_progress")),
            self._event("content_part.added", **self._place, part=_text("")),
        ]

    async def _counted(self, pieces: Pieces, tally: Tally) -> Pieces:
        async for number, piece in pieces:
            tally.add(number, piece)
            yield number, piece

    def _event(self, kind: str, **fields: Any) -> JSON:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

    def _response(self, text: str, last: Piece, tally: Tally) -> JSON:
        assert last.finish is not None
        why = WHY.get(last.finish.reason)
        status = "incomplete" if why else "completed"
        usage = tally.usage()
        details = usage.get("prompt_tokens_details", {"cached_tokens": 0})
        return self._envelope(status, [self._item([_text(text)], status)]) | {
            "incomplete_details": {"reason": why} if why else None,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": details,
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
                "kv": usage.get("kv"),
            },
        }

    def _envelope(self, status: str, output: Sequence[JSON]) -> JSON:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": list(output),
            "error": None,
            "incomplete_details": None,
            "instructions": self.asked.instructions,
            "max_output_tokens": self.asked.max_output_tokens,
            "metadata": self.asked.metadata or {},
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "temperature": self.asked.temperature,
            "top_p": self.asked.top_p,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "usage": None,
        }

    def _item(self, content: Sequence[JSON], status: str) -> JSON:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": list(content),
        }

    @property
    def _place(self) -> JSON:
        """Where the text stands in the output."""
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    @property
    def _item_id(self) -> str:
        return f"msg_{self.id.removeprefix('resp_')}"


def _text(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
