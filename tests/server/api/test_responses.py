"""/v1/responses, through OpenAI's own client."""

import json
from typing import Any

import openai
import pytest

from tests.server.conftest import NAMES, Served

ROLES = ("system", "user", "assistant", "user")


def test_a_text_is_answered(served: Served) -> None:
    got = served.client.responses.create(model=NAMES[0], input="hi")
    assert got.output_text == "user:hi"
    assert (got.status, got.object) == ("completed", "response")
    assert got.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens) == (9, 9)


def test_instructions_and_messages_make_one_conversation(fresh: Served) -> None:
    conversation: Any = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}]},
    ]
    fresh.client.responses.create(model=NAMES[0], input=conversation, instructions="s", max_output_tokens=1)
    fresh.client.chat.completions.create(
        model=NAMES[0],
        messages=[{"role": role, "content": text} for role, text in zip(ROLES, "sabc", strict=True)],
        max_tokens=1,
    )
    ours, chats = fresh.engine.submitted
    assert ours.tokens == chats.tokens


def test_an_answer_that_is_cut_has_a_reason(served: Served) -> None:
    got = served.client.responses.create(model=NAMES[0], input="hello", max_output_tokens=3)
    assert got.status == "incomplete"
    assert got.incomplete_details is not None
    assert got.incomplete_details.reason == "max_output_tokens"
    assert got.output[0].status == "incomplete"
    *_, item, last = served.client.responses.create(model=NAMES[0], input="hello", max_output_tokens=3, stream=True)
    assert (item.type, item.item.status) == ("response.output_item.done", "incomplete")
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_an_answer_repeats_fields_of_its_request(served: Served) -> None:
    body = {"input": "hi", "metadata": {"a": "b"}, "text": {"format": {"type": "text"}}, "instructions": "Be brief"}
    got = served.post("responses", **body).json()
    assert {name: got[name] for name in ("metadata", "text", "instructions")} == {
        name: body[name] for name in ("metadata", "text", "instructions")
    }


def test_a_stream_has_an_event_per_token_and_ends_with_the_complete_response(served: Served) -> None:
    events = list(served.client.responses.create(model=NAMES[0], input="hi", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[4:-4] == ["response.output_text.delta"] * 9
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "user:hi"
    assert events[-1].response.output_text == "user:hi"


def test_the_client_gathers_a_stream(served: Served) -> None:
    with served.client.responses.stream(model=NAMES[0], input="hi") as stream:
        assert stream.get_final_response().output_text == "user:hi"


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_1"},
        {"tools": [{"type": "web_search"}]},
        {"extra_body": {"suffix": "end"}},
        {"input": [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}]},
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        {"temperature": -1},
        {"extra_body": {"metadata": {"a": 1}}},
        {"max_output_tokens": 0},
    ],
)
def test_unsupported_requests_are_refused(served: Served, more: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        served.client.responses.create(**{"model": NAMES[0], "input": "hi"} | more)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("max_tokens", 5, "max_output_tokens"),
        ("max_completion_tokens", 5, "max_output_tokens"),
        ("response_format", {"type": "json_object"}, "text.format"),
        ("n", 3, "n is not supported"),
        ("logprobs", True, "logprobs is not supported"),
    ],
)
def test_fields_of_other_endpoints_are_refused_with_their_names_here(
    served: Served, field: str, value: Any, text: str
) -> None:
    got = served.post("responses", input="hi", **{field: value})
    assert (got.status_code, got.json()["error"]["param"]) == (400, field)
    assert text in got.json()["error"]["message"]
    assert served.post("responses", input="hi", **{field: None}).status_code == 200


@pytest.mark.parametrize("more", [{}, {"instructions": "Be brief"}])
@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"content": "without a role"}, "role"),
        ({"type": "function_call"}, "type"),
        ({"role": "user", "content": 3}, "content"),
    ],
)
def test_an_error_in_a_message_names_its_place_in_input(
    served: Served, item: dict[str, Any], place: str, more: dict[str, Any]
) -> None:
    got = served.post("responses", input=[{"role": "user", "content": "hi"}, item], **more)
    assert (got.status_code, got.json()["error"]["param"]) == (400, f"input[1].{place}")


@pytest.mark.parametrize(
    "more", [{"metadata": {"a": "\ud800"}}, {"text": {"format": {"type": "text", "name": "\ud800"}}}]
)
def test_half_of_a_surrogate_pair_is_refused(served: Served, more: Any) -> None:
    got = served.post("responses", input="hi", **more)
    assert (got.status_code, got.json()["error"]["param"]) == (400, next(iter(more)))


def test_an_error_in_a_stream_is_an_event(served: Served) -> None:
    got = served.post("responses", input="a\x00", stream=True, max_output_tokens=20)
    last = json.loads(got.text.strip().rpartition("data: ")[2])
    assert set(last) == {"type", "sequence_number", "code", "message", "param"}
    assert last["type"] == "error"
    assert "not finite" in last["message"]
    assert last["sequence_number"] == got.text.count("data: ") - 1
