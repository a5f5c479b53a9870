"""MessageBuilder: builds OpenAI's assistant message, with content, reasoning and tool calls, from token outputs."""

from collections.abc import Iterable, Sequence
from typing import Literal
from uuid import uuid4

from pydantic import Field

from ringkv.server.api.documents import Document
from ringkv.server.run.answer import JSON
from ringkv.server.run.generation import TokenOutput
from ringkv.text.answers.reader import Reader
from ringkv.text.answers.spans import AnswerPart, Content, Reasoning, ToolCall


class CalledFunction(Document):
    name: str
    arguments: str


class CalledTool(Document):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Document):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[CalledTool] = Field(default_factory=list)


class MessageBuilder:
    """Takes the outputs of one answer, all at once or one by one. parallel_calls: calls after the first are kept.

    reasoning_tokens: the number so far, think tags included.
    """

    def __init__(self, reader: Reader, parallel_calls: bool = True) -> None:
        self._reader, self._parallel_calls = reader, parallel_calls
        self._calls = 0
        self.reasoning_tokens = 0

    def complete(self, outputs: Sequence[TokenOutput]) -> JSON:
        """Return the message. Its content is null if it has tool calls and no text."""
        parts = [part for output in outputs for part in self._parts(output)]
        content, reasoning, calls = self._fields(parts)
        message: JSON = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        extra = {"reasoning_content": reasoning, "tool_calls": calls}
        return message | {name: value for name, value in extra.items() if value}

    def delta(self, output: TokenOutput) -> JSON:
        """Return what an output adds. A tool call comes complete, in a single delta."""
        content, reasoning, calls = self._fields(self._parts(output))
        delta: JSON = {} if (reasoning or calls) and not content else {"content": content}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if calls:
            delta["tool_calls"] = [{"index": self._calls - len(calls) + n} | call for n, call in enumerate(calls)]
        return delta

    def finish_reason(self, reason: str) -> str:
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _parts(self, output: TokenOutput) -> Iterable[AnswerPart]:
        was_thinking = self._reader.is_thinking
        yield from self._reader.push(output.text)
        self.reasoning_tokens += output.token is not None and (was_thinking or self._reader.is_thinking)
        if output.finish:
            yield from self._reader.finish()

    def _fields(self, parts: Iterable[AnswerPart]) -> tuple[str, str, list[JSON]]:
        """Return content, reasoning and tool calls, and count the calls."""
        content, reasoning, calls = "", "", list[JSON]()
        for part in parts:
            match part:
                case Content(text):
                    content += text
                case Reasoning(text):
                    reasoning += text
                case ToolCall(name, arguments):
                    function = {"name": name, "arguments": arguments}
                    calls.append({"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function})
        if not self._parallel_calls:
            calls = calls[: 1 - self._calls]
        self._calls += len(calls)
        return content, reasoning, calls
