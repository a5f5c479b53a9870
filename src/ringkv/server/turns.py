"""Turns: a chat's messages, checked, and as its template knows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ringkv.base.errors import InvalidRequest
from ringkv.server.schemas import Turn
from ringkv.text.answers.tools import with_arguments_read
from ringkv.text.chat_template import plain

NEWER_SYSTEM = "developer"  # OpenAI's newer name for the system role; templates know the older
ROLES = ("system", NEWER_SYSTEM, "user", "assistant", "tool")
Known = Mapping[str, Any]


def known_turns(messages: Sequence[Turn]) -> list[Known]:
    """Their contents are strings, nulls are absent, arguments of calls are objects.

    Raises InvalidRequest for calls that are none, and for contents that are no text.
    """
    return [_known(turn, number) for number, turn in enumerate(messages)]


def check_shown(turns: Sequence[Known], prompt: str) -> None:
    """Templates drop roles that they do not know, in silence. Raises InvalidRequest where the prompt lacks one."""
    for number, turn in enumerate(turns):
        if turn["role"] not in ROLES and turn["content"].strip() not in prompt:
            raise InvalidRequest(
                f"message {number} has role {turn['role']!r}, which this model's chat template drops; "
                f"it may be one of {', '.join(ROLES)}",
                "messages",
            )


def _known(turn: Turn, number: int) -> Known:
    said = plain({name: value for name, value in turn.items() if value is not None}, number)
    said["role"] = "system" if said["role"] == NEWER_SYSTEM else said["role"]
    said["content"] = said.get("content") or ""
    calls = said.pop("tool_calls", None)
    if not calls:
        return said
    _check_calls(calls, number)
    return with_arguments_read({**said, "tool_calls": calls})


def _check_calls(calls: Any, number: int) -> None:
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        shape = "[{'id': ..., 'type': 'function', 'function': {'name': ..., 'arguments': ...}}]"
        raise InvalidRequest(f"tool_calls of message {number} are none; they are {shape}", "messages")


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
