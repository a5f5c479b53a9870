"""Checks a chat's messages and converts them to the form that chat templates take."""

from collections.abc import Mapping, Sequence
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.server.schemas import SentMessage
from ringkv.text.answers.tools import with_parsed_arguments
from ringkv.text.chat_template import message_param, plain

NEWER_SYSTEM = "developer"  # OpenAI's newer name for the system role; templates use the older one
ROLES = ("system", NEWER_SYSTEM, "user", "assistant", "tool")
TemplateMessage = Mapping[str, Any]


def template_messages(messages: Sequence[SentMessage]) -> list[TemplateMessage]:
    """Convert content to strings and tool call arguments to objects, and drop nulls.

    Raises InvalidRequest for malformed tool calls and for content that is not text.
    """
    return [_template_message(message, number) for number, message in enumerate(messages)]


def check_rendered(messages: Sequence[TemplateMessage], prompt: str) -> None:
    """Raise InvalidRequest if the prompt lacks a message with an unknown role; templates drop those silently."""
    for number, message in enumerate(messages):
        if message["role"] not in ROLES and message["content"].strip() not in prompt:
            raise InvalidRequest(
                f"message {number} has role {message['role']!r}, which this model's chat template drops; "
                f"use one of {', '.join(ROLES)}",
                message_param(number, "role"),
            )


def _template_message(message: SentMessage, number: int) -> TemplateMessage:
    converted = plain({name: value for name, value in message.items() if value is not None}, number)
    converted["role"] = "system" if converted["role"] == NEWER_SYSTEM else converted["role"]
    converted["content"] = converted.get("content") or ""
    calls = converted.pop("tool_calls", None)
    if not calls:
        return converted
    _check_calls(calls, number)
    return with_parsed_arguments({**converted, "tool_calls": calls})


def _check_calls(calls: Any, number: int) -> None:
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        shape = "[{'id': ..., 'type': 'function', 'function': {'name': ..., 'arguments': ...}}]"
        raise InvalidRequest(
            f"tool_calls of message {number} are malformed; the format is {shape}", message_param(number, "tool_calls")
        )


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
