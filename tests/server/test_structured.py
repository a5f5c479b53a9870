"""What an answer must be: the engine would repeat its prompt, and a grammar lets it only where that fits."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ringkv.text.chat_template import ChatTemplate
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import VOCAB, channel

LAST_WORDS = ChatTemplate({"default": "{{ messages[-1].content }}{# tools, <think> #}"}, {})
THINKS = ChatTemplate({"default": "{{ messages[-1].content }}<think>\n{# tools #}"}, {})
COLOURS = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "description": "Paint.", "parameters": COLOURS}}
CALL = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'


@pytest.fixture(scope="module")
def guided(tokenizer: Tokenizer) -> Iterator[Served]:
    """Repeats the last message, as far as a grammar lets it."""
    with serving(channel(guide=Guides(lambda: tokenizer, VOCAB)), tokenizer, LAST_WORDS) as served:
        yield served


def chat(served: Served, said: str, **body: Any) -> Any:
    got = served.post("chat/completions", messages=[{"role": "user", "content": said}], **{"max_tokens": 99} | body)
    assert got.status_code == 200, got.text
    return got.json()["choices"][0]


def complete(served: Served, **body: Any) -> Any:
    return served.post("completions", **{"max_tokens": 99} | body).json()["choices"][0]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": 1}'),
        ({"structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}}}}, "[1, 1]"),
        ({"guided_json": '{"type": "boolean"}'}, "true"),
        ({"guided_regex": "(ab)+c"}, "ababc"),
        ({"guided_choice": ["yes", "no"]}, "no"),
        ({"guided_grammar": 'start: "x" "y"+ "."'}, "xyy."),
    ],
)
def test_an_answer_ends_where_what_was_asked_for_is_whole(guided: Served, field: dict[str, Any], text: str) -> None:
    choice = complete(guided, prompt=text, **field)
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")


def test_what_does_not_fit_is_never_said(guided: Served) -> None:
    schema = {"name": "colour", "strict": True, "schema": COLOURS}
    choice = chat(guided, "anything but JSON", response_format={"type": "json_schema", "json_schema": schema})
    assert json.loads(choice["message"]["content"])["colour"] in ("red", "blue")
    assert choice["finish_reason"] == "stop"


def test_a_neighbour_without_a_grammar_is_left_alone(guided: Served) -> None:
    both = complete(guided, prompt="abc", max_tokens=6, guided_regex="a+", n=1)
    assert set(both["text"]) == {"a"}
    assert complete(guided, prompt="abc", max_tokens=6)["text"] == "abcabc"


def test_a_call_of_a_tool_is_told_as_one(guided: Served) -> None:
    choice = chat(guided, f"Sure.\n{CALL}", tools=[TOOL], max_tokens=len(CALL) + 6)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "paint", "arguments": '{"colour": "red"}'}
    assert call["type"] == "function"
    assert choice["message"]["content"] == "Sure.\n"


def test_a_call_that_is_all_there_is_ends_with_its_own_reason(guided: Served) -> None:
    choice = chat(guided, CALL + "<|im_end|>", tools=[TOOL])
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("wanted", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_a_tool_that_must_be_called_is(guided: Served, wanted: Any) -> None:
    choice = chat(guided, "I would rather not", tools=[TOOL], tool_choice=wanted)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["colour"] in ("red", "blue")
    assert choice["finish_reason"] == "tool_calls"


def test_a_streamed_call_comes_whole_under_its_number(guided: Served) -> None:
    body = {"messages": [{"role": "user", "content": f"{CALL}\n{CALL}<|im_end|>"}], "tools": [TOOL], "max_tokens": 300}
    deltas = [chunk["choices"][0]["delta"] for chunk in guided.chunks("chat/completions", **body)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert "".join(delta.get("content", "") for delta in deltas) == ""
    assert deltas[0]["role"] == "assistant"


@pytest.mark.parametrize(("said", "calls"), [(CALL, 1), ('{"a": 1}', 0)])
def test_beside_a_format_a_tool_may_still_be_called(guided: Served, said: str, calls: int) -> None:
    message = chat(guided, said, tools=[TOOL], response_format={"type": "json_object"})["message"]
    assert len(message.get("tool_calls", ())) == calls
    assert message["content"] == (None if calls else said)


def test_a_call_that_must_be_made_comes_before_a_format(guided: Served) -> None:
    choice = chat(guided, "a", tools=[TOOL], tool_choice="required", response_format={"type": "json_object"})
    assert len(choice["message"]["tool_calls"]) == 1


def test_one_call_is_told_where_no_more_are_wanted(guided: Served) -> None:
    body: Any = {"tools": [TOOL], "parallel_tool_calls": False, "max_tokens": 300}
    assert len(chat(guided, f"{CALL}\n{CALL}<|im_end|>", **body)["message"]["tool_calls"]) == 1
    chunks = guided.chunks(
        "chat/completions", messages=[{"role": "user", "content": f"{CALL}\n{CALL}<|im_end|>"}], **body
    )
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0]


@pytest.mark.parametrize(
    "field",
    [
        {"structured_outputs": {"regex": "(ab)+", "disable_any_whitespace": False, "json_object": False}},
        {"guided_regex": "(ab)+", "guided_json_object": False},
    ],
)
def test_false_asks_for_nothing(guided: Served, field: dict[str, Any]) -> None:
    assert complete(guided, prompt="ab<|im_end|>", **field)["text"] == "ab"


def test_an_object_may_bring_its_schema_and_true_is_any_document(guided: Served) -> None:
    choice = complete(guided, prompt="{}", response_format={"type": "json_object", "schema": COLOURS})
    assert json.loads(choice["text"])["colour"] in ("red", "blue")
    assert complete(guided, prompt="[1]", structured_outputs={"json": True}, max_tokens=3)["text"] == "[1]"


def test_tools_are_not_looked_for_where_none_may_be_called(guided: Served) -> None:
    choice = chat(guided, CALL, tools=[TOOL], tool_choice="none", max_tokens=len(CALL))
    assert choice["message"]["content"] == CALL


def test_the_openai_client_parses_what_it_asked_for(guided: Served) -> None:
    import pydantic

    class Colour(pydantic.BaseModel):
        colour: str

    messages: Any = [{"role": "user", "content": '{"colour": "red"}<|im_end|>'}]
    parsed = guided.client.chat.completions.parse(model="echo", messages=messages, response_format=Colour)
    assert parsed.choices[0].message.parsed == Colour(colour="red")


def test_thoughts_are_told_apart(guided: Served, tokenizer: Tokenizer) -> None:
    choice = chat(guided, "<think>\nhm\n</think>\n\nYes<|im_end|>")
    assert choice["message"]["reasoning_content"] == "hm\n"
    assert choice["message"]["content"] == "Yes"
    with serving(channel(), tokenizer, THINKS) as served:  # the prompt begins the thought: all is one until it ends
        message = {"role": "user", "content": "a</think>b<|im_end|>"}
        usage = served.post("chat/completions", messages=[message], max_tokens=99).json()["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": len("a</think>")}  # tokens are bytes here
        streamed = served.post(
            "chat/completions", messages=[message], max_tokens=99, stream=True, stream_options={"include_usage": True}
        )
        assert f'"reasoning_tokens":{len("a</think>")}' in streamed.text.replace(" ", "")
        choice = chat(served, "a</think>b<|im_end|>")
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("a", "b")
        response = served.post("responses", input="a</think>b<|im_end|>").json()
        assert response["output"][0]["content"][0]["text"] == "b"
        thought = response["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert thought == len("a</think>")
    with serving(channel(guide=Guides(lambda: tokenizer, VOCAB)), tokenizer, THINKS) as served:
        message = chat(served, "x", response_format={"type": "json_object"}, max_tokens=30)["message"]
        assert json.loads(message["content"]) is not None
        assert "reasoning_content" not in message


@pytest.mark.parametrize("keyword", ["uniqueItems", "contains", "patternProperties"])
def test_a_keyword_that_is_not_enforced_is_refused_by_name(guided: Served, keyword: str) -> None:
    value: Any = {"uniqueItems": True, "contains": {"type": "integer"}, "patternProperties": {"(?=a)b": {}}}[keyword]
    schema = {"type": ["array", "object"], keyword: value}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    got = guided.post("chat/completions", messages=[{"role": "user", "content": "a"}], response_format=format_)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "response_format"
