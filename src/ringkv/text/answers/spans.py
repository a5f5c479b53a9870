"""MarkedSpan: text between two marks in an answer, such as thinking or a tool call."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

THINK, END_OF_THINK = "<think>", "</think>"
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)  # models write raw line breaks in strings
JSON = json.JSONDecoder(strict=False)  # takes raw line breaks and tabs in strings


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


@dataclass(frozen=True)
class ReasoningEnded:
    """The end mark of reasoning without a begin mark. The content before it was reasoning."""


AnswerPart = Content | Reasoning | ToolCall | ReasoningEnded


@dataclass(frozen=True)
class MarkedSpan:
    """The text from `begin` to `end`, or to the end of the answer if `end` is "".

    parse: the parts of a complete span's text; None if it is not valid, and it is then shown unchanged. stream: the
    part of an incomplete span's text; None for a span that must be complete, whose text is JSON. at_start: only valid
    before all other text. ends_alone: `end` may come first, and what is before it belongs to the span.
    """

    begin: str
    end: str
    parse: Callable[[str], Sequence[AnswerPart] | None] = lambda _: None
    stream: Callable[[str], AnswerPart] | None = None
    at_start: bool = False
    ends_alone: bool = False


def thinking() -> MarkedSpan:
    """Return the span of DeepSeek-R1 and Qwen3. Marks are only valid at the start, so answers may mention them."""
    return MarkedSpan(THINK, END_OF_THINK, stream=Reasoning, at_start=True, ends_alone=True)


def tagged_calls(names: Collection[str]) -> MarkedSpan:
    """Return the span of Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, repeated."""
    return MarkedSpan("<tool_call>", "</tool_call>", lambda text: parse_calls(text, names))


def bare_calls(names: Collection[str]) -> MarkedSpan:
    """Return the span of Llama 3: the whole answer is {"name": ..., "parameters": {...}}, or several separated by ;."""
    return MarkedSpan("{", "", lambda text: parse_calls("{" + text, names), at_start=True)


def ends_in_string(text: str) -> bool:
    """Return whether a JSON object that is incomplete ends inside a string."""
    return text.lstrip().startswith("{") and '"' in STRING.sub("", text)


def parse_calls(text: str, names: Collection[str]) -> list[AnswerPart] | None:
    """Return the calls that a text consists of; None if anything in it is not a call of a tool in `names`."""
    calls, rest = list[AnswerPart](), text.strip()
    while rest:
        try:
            value, end = JSON.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        if (call := _call(value, names)) is None:
            return None
        calls.append(call)
        rest = rest[end:].lstrip("; \n")
    return calls or None


def _call(value: Any, names: Collection[str]) -> ToolCall | None:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        return None
    arguments = _object(value.get("arguments", value.get("parameters")))
    return None if arguments is None else ToolCall(name, arguments)


def _object(value: Any) -> str | None:
    """Return a JSON object, or its text, as text; None for anything else."""
    with suppress(ValueError, RecursionError):
        parsed = JSON.decode(value or "{}") if isinstance(value, str) else {} if value is None else value
        return to_json(parsed) if isinstance(parsed, dict) else None
    return None


def to_json(value: Any) -> str:
    """Return valid UTF-8 JSON; lone surrogates stay escaped. Raises ValueError for NaN and infinity."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
