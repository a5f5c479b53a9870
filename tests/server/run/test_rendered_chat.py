"""Messages in the forms that clients send."""

import pytest

from ringkv.base.errors import InvalidRequest
from ringkv.server.run.rendered_chat import check_rendered, template_messages

CALLS = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]


def test_nulls_and_empty_lists_of_calls_are_absent() -> None:
    sent = {"role": "assistant", "content": None, "refusal": None, "function_call": None, "tool_calls": None}
    assert template_messages([sent]) == [{"role": "assistant", "content": ""}]
    assert template_messages([sent | {"tool_calls": []}]) == [{"role": "assistant", "content": ""}]


def test_parts_are_joined_whatever_else_a_message_holds() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = template_messages([{"role": "assistant", "content": parts, "tool_calls": CALLS}])
    assert message["content"] == "a\nb"
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}


def test_the_newer_name_of_the_system_role_is_the_older() -> None:
    assert template_messages([{"role": "developer", "content": "Be brief"}]) == [
        {"role": "system", "content": "Be brief"}
    ]


def test_a_role_that_a_template_drops_is_refused() -> None:
    messages = template_messages([{"role": "user", "content": "hi"}, {"role": "critic", "content": "well"}])
    check_rendered(messages, "hi ... well")
    with pytest.raises(InvalidRequest, match="'critic'") as refused:
        check_rendered(messages, "hi ...")
    assert refused.value.param == "messages[1].role"
