"""ResponsesFormatter: formats an answer of /v1/responses as one JSON body or as named events."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

from ringkv.base.events import FinishReason
from ringkv.server.answer import JSON
from ringkv.server.errors import body_of
from ringkv.server.generation import Outputs, OutputStream, TokenOutput
from ringkv.server.message_builder import MessageBuilder
from ringkv.server.stream import named_event
from ringkv.server.usage import UsageCounter

INCOMPLETE_REASONS: Mapping[FinishReason, str] = {"length": "max_output_tokens"}  # OpenAI has no reason for an abort


class ResponsesFormatter:
    """Formats one answer, once. request_fields: fields of the request that the response repeats."""

    def __init__(self, id: str, created: int, model: str, request_fields: JSON, builder: MessageBuilder) -> None:
        self._id, self._created, self._model = id, created, model
        self._request_fields, self._builder = request_fields, builder
        self._numbers = count()

    async def complete(self, stream: OutputStream, counter: UsageCounter) -> JSON:
        outputs = []
        async with aclosing(stream):
            async for batch in stream:
                outputs += _counted(batch, counter)
        text = self._builder.complete(outputs)["content"] or ""
        return self._response(text, outputs[-1], counter)

    async def events(self, stream: OutputStream, counter: UsageCounter) -> AsyncGenerator[bytes, None]:
        """Yield named events, one text delta per token; those of a batch of tokens are joined."""
        text, last = "", None
        async with aclosing(stream):
            async for batch in stream:
                events = self._opening() if last is None else []
                for output in _counted(batch, counter):
                    delta, last = self._builder.delta(output).get("content") or "", output
                    text += delta
                    events.append(self._event("output_text.delta", **self._position, delta=delta, logprobs=[]))
                yield _joined(events)
        assert last is not None
        yield _joined(self._closing(text, self._response(text, last, counter)))

    def _closing(self, text: str, response: JSON) -> Sequence[JSON]:
        (item,) = response["output"]
        return [
            self._event("output_text.done", **self._position, text=text, logprobs=[]),
            self._event("content_part.done", **self._position, part=_text(text)),
            self._event("output_item.done", output_index=0, item=item),
            self._event(str(response["status"]), response=response),
        ]

    def error(self, error: Exception) -> bytes:
        """Return the event of an error."""
        body = body_of(error)["error"]
        fields = {name: body[name] for name in ("code", "message", "param")}
        return named_event({"type": "error", "sequence_number": next(self._numbers), **fields})

    def _opening(self) -> list[JSON]:
        response = self._envelope("in_progress", [])
        return [
            self._event("created", response=response),
            self._event("in_progress", response=response),
            self._event("output_item.added", output_index=0, item=self._item([], "in_progress")),
            self._event("content_part.added", **self._position, part=_text("")),
        ]

    def _event(self, kind: str, **fields: Any) -> JSON:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

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
            "id": self._id,
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
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": list(content),
        }

    @property
    def _position(self) -> JSON:
        """Indices of the text within the output."""
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    @property
    def _item_id(self) -> str:
        return f"msg_{self._id.removeprefix('resp_')}"


def _counted(batch: Outputs, counter: UsageCounter) -> list[TokenOutput]:
    """Count a batch's outputs and return them."""
    for one in batch:
        counter.add(*one)
    return [output for _, output in batch]


def _joined(events: Sequence[JSON]) -> bytes:
    return b"".join(map(named_event, events))


def _text(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
