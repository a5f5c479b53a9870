"""Structured output. The engine would repeat its prompt, and the grammar masks the tokens that do not fit."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partialmethod
from itertools import pairwise
from select import select
from threading import Event
from typing import Any

import pytest

from ringkv.server.protocol.drain import Drain
from ringkv.text import guide_processes
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.guide import Guides
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import VOCAB, channel
from tests.server.protocol.test_stream import sent

LAST_MESSAGE = ChatTemplate({"default": "{{ messages[-1].content }}{# tools, <tool_call> #}"}, {})
MAY_THINK = ChatTemplate({"default": "{{ messages[-1].content }}{# tools, <tool_call>, <think> #}"}, {})
THINKS = ChatTemplate({"default": "{{ messages[-1].content }}<think>\n{# tools, <tool_call> #}"}, {})
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
    """A server that repeats the last message as far as the grammar allows it."""
    with serving(channel(guide=Guides(lambda: tokenizer, VOCAB)), tokenizer, LAST_MESSAGE) as served:
        yield served


def chat(served: Served, content: str, **body: Any) -> Any:
    """Chat with a model that repeats the content, and ends at the special token in it."""
    messages, defaults = [{"role": "user", "content": content}], {"max_tokens": 99, "parse_special_tokens": True}
    got = served.post("chat/completions", messages=messages, **defaults | body)
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
def test_an_answer_ends_when_its_grammar_is_complete(guided: Served, field: dict[str, Any], text: str) -> None:
    choice = complete(guided, prompt=text, **field)
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")


def test_an_answer_always_fits_its_schema(guided: Served) -> None:
    schema = {"name": "colour", "strict": True, "schema": COLOURS}
    choice = chat(guided, "anything but JSON", response_format={"type": "json_schema", "json_schema": schema})
    assert json.loads(choice["message"]["content"])["colour"] in ("red", "blue")
    assert choice["finish_reason"] == "stop"


def test_a_neighbour_without_a_grammar_is_left_alone(guided: Served) -> None:
    both = complete(guided, prompt="abc", max_tokens=6, guided_regex="a+", n=1)
    assert set(both["text"]) == {"a"}
    assert complete(guided, prompt="abc", max_tokens=6)["text"] == "abcabc"


def test_a_tool_call_is_returned_as_one(guided: Served) -> None:
    choice = chat(guided, f"Sure.\n{CALL}", tools=[TOOL], max_tokens=len(CALL) + 6)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "paint", "arguments": '{"colour": "red"}'}
    assert call["type"] == "function"
    assert choice["message"]["content"] == "Sure.\n"


def test_an_answer_that_is_only_a_call_has_its_own_finish_reason(guided: Served) -> None:
    choice = chat(guided, CALL + "<|im_end|>", tools=[TOOL])
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_a_required_tool_is_called(guided: Served, tool_choice: Any) -> None:
    choice = chat(guided, "I would rather not", tools=[TOOL], tool_choice=tool_choice)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["colour"] in ("red", "blue")
    assert choice["finish_reason"] == "tool_calls"


def test_a_streamed_call_is_complete_and_has_its_index(guided: Served) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": f"{CALL}\n{CALL}<|im_end|>"}], "tools": [TOOL]}
    body |= {"max_tokens": 300, "parse_special_tokens": True}
    deltas = [chunk["choices"][0]["delta"] for chunk in guided.chunks("chat/completions", **body)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert "".join(delta.get("content", "") for delta in deltas) == ""
    assert deltas[0]["role"] == "assistant"


@pytest.mark.parametrize(("content", "calls"), [(CALL, 1), ('{"a": 1}', 0)])
def test_with_a_response_format_a_tool_may_still_be_called(guided: Served, content: str, calls: int) -> None:
    message = chat(guided, content, tools=[TOOL], response_format={"type": "json_object"})["message"]
    assert len(message.get("tool_calls", ())) == calls
    assert message["content"] == (None if calls else content)


def test_a_required_call_overrides_a_response_format(guided: Served) -> None:
    choice = chat(guided, "a", tools=[TOOL], tool_choice="required", response_format={"type": "json_object"})
    assert len(choice["message"]["tool_calls"]) == 1


def test_one_call_is_returned_without_parallel_tool_calls(guided: Served) -> None:
    body: Any = {"tools": [TOOL], "parallel_tool_calls": False, "max_tokens": 300, "parse_special_tokens": True}
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
def test_false_has_no_effect(guided: Served, field: dict[str, Any]) -> None:
    assert complete(guided, prompt="ab<|im_end|>", **field)["text"] == "ab"


def test_an_object_may_bring_its_schema_and_true_is_any_document(guided: Served) -> None:
    choice = complete(guided, prompt="{}", response_format={"type": "json_object", "schema": COLOURS})
    assert json.loads(choice["text"])["colour"] in ("red", "blue")
    assert complete(guided, prompt="[1]", structured_outputs={"json": True}, max_tokens=3)["text"] == "[1]"


def test_calls_are_not_parsed_if_no_tool_may_be_called(guided: Served) -> None:
    choice = chat(guided, CALL, tools=[TOOL], tool_choice="none", max_tokens=len(CALL))
    assert choice["message"]["content"] == CALL


def test_the_openai_client_parses_its_response_format(guided: Served) -> None:
    import pydantic

    class Colour(pydantic.BaseModel):
        colour: str

    messages: Any = [{"role": "user", "content": '{"colour": "red"}<|im_end|>'}]
    parsed = guided.client.chat.completions.parse(model="echo", messages=messages, response_format=Colour)
    assert parsed.choices[0].message.parsed == Colour(colour="red")


def test_reasoning_is_separated_from_content(tokenizer: Tokenizer) -> None:
    with serving(channel(guide=Guides(lambda: tokenizer, VOCAB)), tokenizer, MAY_THINK) as served:
        for body in ({}, {"structured_outputs": {"choice": ["Yes", "No"]}}):
            message = chat(served, "<think>\nhm\n</think>\n\nYes<|im_end|>", **body)["message"]
            assert (message["reasoning_content"], message["content"]) == ("hm\n", "Yes")
        message = chat(served, "Yes<|im_end|>", structured_outputs={"choice": ["Yes", "No"]})["message"]
        assert message == {"role": "assistant", "content": "Yes", "refusal": None}
    with serving(channel(), tokenizer, THINKS) as served:  # the prompt opens the reasoning
        message = {"role": "user", "content": "a</think>b<|im_end|>"}
        usage = served.post("chat/completions", messages=[message], max_tokens=99).json()["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": len("a</think>")}  # tokens are bytes here
        streamed = served.post(
            "chat/completions", messages=[message], max_tokens=99, stream=True, stream_options={"include_usage": True}
        )
        assert f'"reasoning_tokens":{len("a</think>")}' in streamed.text.replace(" ", "")
        choice = chat(served, "a</think>b<|im_end|>")
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("a", "b")
        response = served.post("responses", input="a</think>b<|im_end|>", parse_special_tokens=True).json()
        assert response["output"][0]["content"][0]["text"] == "b"
        reasoning_tokens = response["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert reasoning_tokens == len("a</think>")
    with serving(channel(guide=Guides(lambda: tokenizer, VOCAB)), tokenizer, THINKS) as served:
        for field in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "[{].*[}]"}}):
            message = chat(served, 'So {"a": 1}.</think>{"b": 2}<|im_end|>', **field, max_tokens=60)["message"]
            assert message["reasoning_content"] == 'So {"a": 1}.'
            assert json.loads(message["content"]) == {"b": 2}
        sent = chat(served, f"Red.</think>\n\n{CALL}<|im_end|>", tools=[TOOL], tool_choice="required", max_tokens=200)
        assert sent["message"]["reasoning_content"] == "Red."
        (call,) = sent["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"colour": "red"}


EFFORT = ChatTemplate(
    {"default": "{{ messages[-1].content }}{{ reasoning_effort }}{% if enable_thinking is false %}!{% endif %}"}, {}
)


@pytest.mark.parametrize(("effort", "answer"), [(None, "a"), ("high", "ahigh"), ("none", "a!")])
def test_the_reasoning_effort_reaches_the_template(tokenizer: Tokenizer, effort: str | None, answer: str) -> None:
    with serving(channel(), tokenizer, EFFORT) as served:
        sent = chat(served, "a", reasoning_effort=effort, max_tokens=len(answer))
        assert sent["message"]["content"] == answer
        got = served.post("responses", input="a", reasoning={"effort": effort}, max_output_tokens=len(answer)).json()
        assert got["output"][0]["content"][0]["text"] == answer


def test_an_effort_that_the_template_does_not_take_is_refused(served: Served, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "a"}]
    with serving(channel(), tokenizer, MAY_THINK) as thinking:
        for server, effort in ((served, "high"), (thinking, "none")):
            response = server.post("chat/completions", messages=messages, reasoning_effort=effort)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "reasoning_effort")
    response = served.post("responses", input="a", reasoning={"effort": "low"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "reasoning.effort")
    for effort in ("medium", "none"):
        assert served.post("chat/completions", messages=messages, reasoning_effort=effort).status_code == 200


@pytest.mark.parametrize("keyword", ["uniqueItems", "contains", "patternProperties"])
def test_a_keyword_that_is_not_enforced_is_refused_by_name(guided: Served, keyword: str) -> None:
    value: Any = {"uniqueItems": True, "contains": {"type": "integer"}, "patternProperties": {"(?=a)b": {}}}[keyword]
    schema = {"type": ["array", "object"], keyword: value}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    got = guided.post("chat/completions", messages=[{"role": "user", "content": "a"}], response_format=format_)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "response_format"


def chain(links: int) -> str:
    names = [f"{at:x}".translate(LETTERS) for at in range(links + 1)]
    rules = [f"{one}: {following}" for one, following in pairwise(names)]
    return "\n".join([f"start: {names[0]}", *rules, f'{names[-1]}: "a"'])


LETTERS = str.maketrans("0123456789", "ghijklmnop")


@pytest.mark.parametrize(
    "field",
    [
        {"guided_grammar": chain(9000)},
        {"guided_regex": "(a{1000}){1000}"},
        {"guided_choice": [f"choice {at}" for at in range(20_000)]},
        {
            "guided_grammar": "start: "
            + " | ".join(f"r{at}" for at in range(2001))
            + "".join(f'\nr{at}: "a" "b"' for at in range(2001))
        },
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["x" * 200_000]}}}},
    ],
    ids=["chain", "repetitions", "choices", "rules", "enum"],
)
def test_a_grammar_that_is_too_large_is_refused_and_the_server_answers_on(guided: Served, field: Any) -> None:
    got = guided.post("completions", prompt="a", max_tokens=3, **field)
    if got.status_code == 200:  # a long chain of references is no large grammar
        assert "guided_grammar" in field
        assert got.json()["choices"][0]["text"] == "a"
    else:
        error = got.json()["error"]
        assert (got.status_code, error["param"]) == (400, next(iter(field)))
        assert "too large" in error["message"]
    assert guided.http.get("/health").status_code == 200


def test_a_choice_of_2500_texts_is_answered_with_one_of_them(guided: Served) -> None:
    texts = [f"choice {at}" for at in range(2500)]
    assert complete(guided, prompt="choice 2499", guided_choice=texts)["text"] == "choice 2499"


AMBIGUOUS = "start: s\ns: " + "s s | " * 1500 + '"a"'  # a mask takes more than a second
NESTED = "(" * 60_000 + "a" + ")" * 60_000  # takes minutes to compile


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"guided_grammar": AMBIGUOUS}, "guided_grammar: the grammar is too large or ambiguous: computing its first"),
        ({"guided_regex": NESTED}, "guided_regex: the grammar is too large or ambiguous: compiling it takes more than"),
    ],
)
def test_a_grammar_that_takes_too_long_is_refused_by_name_and_others_are_served_meanwhile(
    guided: Served, field: dict[str, Any], reason: str
) -> None:
    with ThreadPoolExecutor(1) as executor:
        hostile = executor.submit(guided.post, "completions", prompt="a", max_tokens=3, **field)
        for _ in range(3):
            assert complete(guided, prompt="ababc", guided_regex="(ab)+c")["text"] == "ababc"
        assert not hostile.done()
    error = hostile.result().json()["error"]
    assert (hostile.result().status_code, error["param"]) == (400, next(iter(field)))
    assert reason in error["message"]
    assert "simplify it" in error["message"]


def waited(event: Event) -> None:
    assert event.wait(10)


def test_a_full_queue_of_grammars_is_a_503_and_who_disconnects_leaves_it(
    guided: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, checked = Event(), list[str]()
    with monkeypatch.context() as patch, ExitStack() as clients:
        patch.setattr(GuideProcesses, "_try", lambda _, grammar, __: checked.append(grammar) or waited(go))
        patch.setattr(guide_processes, "WAITING", 1)
        connections = [clients.enter_context(sent(guided, prompt="a", guided_regex=f"a{at}")) for at in range(4)]
        answered, _, _ = select(connections, [], [], 10)
        assert len(answered) == 1
        answer = answered[0].recv(4096).decode()
        assert answer.startswith("HTTP/1.1 503")
        assert "retry-after: 6" in answer
        assert guided.metric('ringkv_requests_rejected_total{reason="queue_grammars"}') == 1
    disconnected = 'ringkv_requests_total{endpoint="/v1/completions",status="499"} 3.0'
    deadline = time.monotonic() + 10
    while disconnected not in guided.http.get("/metrics").text:
        assert time.monotonic() < deadline
    go.set()
    assert complete(guided, prompt="ababc", guided_regex="(ab)+c")["text"] == "ababc"
    assert len(checked) == 2


def test_a_server_that_stops_does_not_wait_for_checks(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = Drain()
    monkeypatch.setattr(GuideProcesses, "__init__", partialmethod(GuideProcesses.__init__, compiling=60.0))
    with serving(channel(), tokenizer, None, drain=drain) as served, ThreadPoolExecutor(4) as clients:
        hostile = [
            clients.submit(served.post, "completions", prompt="a", guided_regex=NESTED + letter) for letter in "abcd"
        ]
        while drain.running < len(hostile):
            time.sleep(0.01)
        drain.begin(0)
        asyncio.run(drain.finished())
        began = time.monotonic()
        for answer in hostile:
            error = answer.result().json()["error"]
            assert (answer.result().status_code, error["code"]) == (503, "draining")
    assert time.monotonic() - began < 10  # a check takes 60 s


def test_a_model_whose_calls_are_not_read_refuses_tools(tokenizer: Tokenizer) -> None:
    mistral = ChatTemplate({"default": "{{ messages[-1].content }}{# tools, [TOOL_CALLS] #}"}, {})
    with serving(channel(), tokenizer, mistral) as served:
        messages = [{"role": "user", "content": "a"}]
        for choice, status in (("auto", 400), ("required", 400), ("none", 200)):
            got = served.post("chat/completions", messages=messages, tools=[TOOL], tool_choice=choice, max_tokens=1)
            assert got.status_code == status
            assert status == 200 or got.json()["error"]["param"] == "tools"


@pytest.mark.parametrize(("mode", "reason"), [("required", "tool_calls"), ("auto", "stop")])
def test_a_choice_of_allowed_tools_excludes_the_others(guided: Served, mode: str, reason: str) -> None:
    other = {"type": "function", "function": {"name": "erase"}}
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "paint"}}]}
    call = CALL.replace("paint", "erase") + "<|im_end|>"
    choice = chat(guided, call, tools=[TOOL, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert choice["finish_reason"] == reason
    calls = choice["message"].get("tool_calls", [])
    assert [each["function"]["name"] for each in calls] == (["paint"] if mode == "required" else [])


def test_the_template_gets_tools_as_they_were_sent(tokenizer: Tokenizer) -> None:
    shows = ChatTemplate({"default": "{{ tools | tojson }}{# <tool_call> #}"}, {})
    tool = {"function": {"strict": True, "parameters": {"default": None}, "name": "f", "x": 1}, "type": "function"}
    with serving(channel(), tokenizer, shows) as served:
        shown = json.dumps([tool])
        content = chat(served, "a", tools=[tool], max_tokens=len(shown))["message"]["content"]
        assert content == shown
