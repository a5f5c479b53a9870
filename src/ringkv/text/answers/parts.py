"""Parts of an answer: content, reasoning and tool calls."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text that the model marks as thinking, before its answer."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. arguments: a JSON object, as text."""

    name: str
    arguments: str


AnswerPart = Content | Reasoning | ToolCall
