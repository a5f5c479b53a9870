"""Message: a chat model's answer as OpenAI words it: content, reasoning, calls of tools."""

from collections.abc import Iterable, Sequence
from uuid import uuid4

from ringkv.server.answer import JSON
from ringkv.server.generation import Piece
from ringkv.text.answers.parts import Call, Content, Part, Reasoning
from ringkv.text.answers.reader import Reader


class Message:
    """Fed with the pieces of one answer, all at once or one by one. several: more than its first call is told.

    reasoned: tokens of what was thought by now, and of its marks.
    """

    def __init__(self, reader: Reader, several: bool = True) -> None:
        self._reader, self._several = reader, several
        self._calls = 0
        self.reasoned = 0

    def whole(self, pieces: Sequence[Piece]) -> JSON:
        """The message; its content is null where it has calls and says nothing."""
        parts = [part for piece in pieces for part in self._parts(piece)]
        content, reasoning, calls = self._told(parts)
        message: JSON = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        return (
            message | ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})
        )

    def delta(self, piece: Piece) -> JSON:
        """What one piece adds; a call comes whole, in one delta."""
        content, reasoning, calls = self._told(self._parts(piece))
        delta: JSON = {} if (reasoning or calls) and not content else {"content": content}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if calls:
            delta["tool_calls"] = [{"index": self._calls - len(calls) + n} | call for n, call in enumerate(calls)]
        return delta

    def finish_reason(self, reason: str) -> str:
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _parts(self, piece: Piece) -> Iterable[Part]:
        was_thinking = self._reader.is_thinking
        yield from self._reader.push(piece.text)
        self.reasoned += piece.token is not None and (was_thinking or self._reader.is_thinking)
        if piece.finish:
            yield from self._reader.finish()

    def _told(self, parts: Iterable[Part]) -> tuple[str, str, list[JSON]]:
        parts = list(parts)
        calls = [_call(part) for part in parts if isinstance(part, Call)]
        if not self._several:
            calls = calls[: 1 - self._calls]
        self._calls += len(calls)
        content, reasoning = (
            "".join(part.text for part in parts if isinstance(part, kind)) for kind in (Content, Reasoning)
        )
        return content, reasoning, calls


def _call(call: Call) -> JSON:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}
