"""Reply: how /v1/responses words an answer, whole or as named events."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

from ringkv.base.events import FinishReason
from ringkv.server.answer import JSON
from ringkv.server.errors import body_of
from ringkv.server.generation import Piece, Pieces
from ringkv.server.message import Message
from ringkv.server.usage import Tally

WHY: Mapping[FinishReason, str] = {"length": "max_output_tokens"}  # OpenAI has no word for an abort


class Reply:
    """One answer, worded once. told: what it says of its request."""

    def __init__(self, id: str, created: int, model: str, told: JSON, message: Message) -> None:
        self._id, self._created, self._model, self._told, self._message = id, created, model, told, message
        self._numbers = count()

    async def whole(self, pieces: Pieces, tally: Tally) -> JSON:
        async with aclosing(pieces):
            said = [piece async for _, piece in self._counted(pieces, tally)]
        text = self._message.whole(said)["content"] or ""
        return self._response(text, said[-1], tally)

    async def events(self, pieces: Pieces, tally: Tally) -> AsyncGenerator[JSON, None]:
        """Named events, of which the ones with text are one for each token. An error after the first is one too."""
        text, last, place = "", None, self._place
        async with aclosing(pieces):
            try:
                async for _, piece in self._counted(pieces, tally):
                    if last is None:
                        for event in self._opening():
                            yield event
                    delta, last = self._message.delta(piece).get("content") or "", piece
                    text += delta
                    yield self._event("output_text.delta", **place, delta=delta, logprobs=[])
            except Exception as error:
                if last is None:
                    raise
                yield self._error(error)
                return
        assert last is not None
        for event in self._closing(text, self._response(text, last, tally)):
            yield event

    def _closing(self, text: str, response: JSON) -> Sequence[JSON]:
        (item,) = response["output"]
        return [
            self._event("output_text.done", **self._place, text=text, logprobs=[]),
            self._event("content_part.done", **self._place, part=_text(text)),
            self._event("output_item.done", output_index=0, item=item),
            self._event(str(response["status"]), response=response),
        ]

    def _error(self, error: Exception) -> JSON:
        said = body_of(error)["error"]
        fields = {name: said[name] for name in ("code", "message", "param")}
        return {"type": "error", "sequence_number": next(self._numbers), **fields}

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
        status = "completed" if last.finish.reason == "stop" else "incomplete"
        usage = tally.usage()
        details = usage.get("prompt_tokens_details", {"cached_tokens": 0})
        return self._envelope(status, [self._item([_text(text)], status)]) | {
            "incomplete_details": {"reason": why} if why else None,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": details,
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._message.reasoned},
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
            **self._told,
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
        return f"msg_{self._id.removeprefix('resp_')}"


def _text(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
