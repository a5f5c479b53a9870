"""MessageBuilder: builds OpenAI's assistant message, with content, reasoning and tool calls, from token outputs."""

from collections.abc import Sequence
from itertools import chain
from typing import Literal
from uuid import uuid4

from pydantic import Field

from ringkv.server.api.documents import Document
from ringkv.server.run.answer import JSON
from ringkv.server.run.generation import TokenOutput
from ringkv.text.answers.spans import Content, Reasoning, ReasoningEnded, ToolCall

CALL_ID = 9  # letters and digits, as Mistral's chat templates require


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

    def __init__(self, parallel_calls: bool = True) -> None:
        self._parallel_calls = parallel_calls
        self._calls = 0
        self.reasoning_tokens = 0

    def complete(self, outputs: Sequence[TokenOutput]) -> JSON:
        """Return the message. Its content is null if it has tool calls and no text."""
        content, reasoning, calls = self._fields(outputs)
        message: JSON = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        extra = {"reasoning_content": reasoning, "tool_calls": calls}
        return message | {name: value for name, value in extra.items() if value}

    def delta(self, output: TokenOutput) -> JSON:
        """Return what an output adds. A tool call comes complete, in a single delta."""
        content, reasoning, calls = self._fields([output])
        delta: JSON = {} if (reasoning or calls) and not content else {"content": content}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if calls:
            delta["tool_calls"] = [{"index": self._calls - len(calls) + n} | call for n, call in enumerate(calls)]
        return delta

    def finish_reason(self, reason: str) -> str:
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _fields(self, outputs: Sequence[TokenOutput]) -> tuple[str, str, list[JSON]]:
        """Return content, reasoning and tool calls, and count the calls and the tokens of reasoning."""
        self.reasoning_tokens += sum(output.is_reasoning for output in outputs)
        content, reasoning, calls = "", "", list[JSON]()
        for part in chain.from_iterable(output.parts for output in outputs):
            match part:
                case Content(text):
                    content += text
                case Reasoning(text):
                    reasoning += text
                case ReasoningEnded():
                    content, reasoning = "", reasoning + content
                case ToolCall(name, arguments):
                    function = {"name": name, "arguments": arguments}
                    calls.append({"id": uuid4().hex[:CALL_ID], "type": "function", "function": function})
        if not self._parallel_calls:
            calls = calls[: 1 - self._calls]
        self._calls += len(calls)
        return content, reasoning, calls
