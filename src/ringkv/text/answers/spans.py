"""Span: a stretch of an answer that a model marks, and what it says."""

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ringkv.text.answers.parts import Call, Content, Part, Reasoning

THINK, END_OF_THINK = "<think>", "</think>"


@dataclass(frozen=True)
class Span:
    """From `begin` to `end`, or to the end of the answer where `end` is "".

    read: its text as parts, once it is whole; None where it means nothing, and is shown as it stands. stream: its text
    as it comes, for a span that need not be whole. leads: it is one only where it stands before all other text.
    """

    begin: str
    end: str
    read: Callable[[str], Sequence[Part] | None] = lambda _: None
    stream: Callable[[str], Part] | None = None
    leads: bool = False


def thinking() -> Span:
    """As DeepSeek-R1 and Qwen3 do, before all else; an answer that speaks of the mark itself is left whole."""
    return Span(THINK, END_OF_THINK, stream=Reasoning, leads=True)


def tagged_calls(names: Collection[str]) -> Span:
    """Hermes' and Qwen's: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one after another."""
    return Span("<tool_call>", "</tool_call>", lambda text: read_calls(text, names))


def bare_calls(names: Collection[str]) -> Span:
    """Llama 3's: the whole answer is {"name": ..., "parameters": {...}}, or several with ; between."""
    return Span("{", "", lambda text: read_calls("{" + text, names), leads=True)


def read_calls(text: str, names: Collection[str]) -> list[Part] | None:
    """The calls that a text consists of; None where it is not all calls of tools that are there."""
    decoder, calls, rest = json.JSONDecoder(), list[Part](), text.strip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        if (call := _call(value, names)) is None:
            return None
        calls.append(call)
        rest = rest[end:].lstrip("; \n")
    return calls or None


def _call(value: Any, names: Collection[str]) -> Call | None:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        return None
    arguments = _object(value.get("arguments", value.get("parameters")))
    return None if arguments is None else Call(name, arguments)


def _object(value: Any) -> str | None:
    """A JSON object as text, which it may be already; None for what is none."""
    with suppress(ValueError, RecursionError):
        found = json.loads(value or "{}") if isinstance(value, str) else {} if value is None else value
        return written(found) if isinstance(found, dict) else None
    return None


def written(value: Any) -> str:
    """As JSON that can be sent: half of a surrogate pair stays an escape. Raises ValueError for NaN and infinity."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def shown(span: Span, text: str) -> Content:
    """A span that means nothing, as it was written."""
    return Content(span.begin + text + span.end)
