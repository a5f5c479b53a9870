from typing import Any

import openai
import pytest

from ringkv.base.failure import Failure, revive
from ringkv.server.protocol.errors import LARGEST_BODY, answer_of
from tests.server.conftest import NAMES, Served, serving
from tests.server.echo import BREAKS, VOCAB, channel

CHAT = "chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
TEXT_PART, IMAGE_PART = {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": ""}}


def error(served: Served, path: str, status: int, **body: Any) -> dict[str, Any]:
    """Send a request that must fail and return its error, after checking the format that all errors have."""
    got = served.post(path, **body)
    assert got.status_code == status, got.text
    assert list(got.json()) == ["error"]
    found: dict[str, Any] = got.json()["error"]
    assert list(found) == ["message", "type", "param", "code"]
    assert "\n" not in found["message"]
    return found


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [1.5]}),
        ("prompt", {"prompt": [True]}),
        ("prompt", {"prompt": ["a", 1]}),
        ("prompt", {"prompt": {"text": "a"}}),
        ("prompt", {"prompt": [VOCAB]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": "a" * 513}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": "many"}),
        ("temperature", {"temperature": -1}),
        ("temperature", {"temperature": 1e39}),
        ("repetition_penalty", {"repetition_penalty": 1e-30}),
        ("repetition_penalty", {"repetition_penalty": 1e30}),
        ("frequency_penalty", {"frequency_penalty": 2.5}),
        ("top_p", {"top_p": 0}),
        ("n", {"n": 0}),
        ("best_of", {"best_of": 1, "n": 2}),
        ("best_of", {"best_of": 2, "stream": True}),
        ("echo", {"echo": "twice"}),
        ("suffix", {"suffix": "end"}),
        ("regex", {"regex": "a+"}),
        ("ebnf", {"ebnf": "root ::= 'a'"}),
        ("json_schema", {"json_schema": "{}"}),
        ("response_format", {"response_format": {"type": "xml"}}),
        ("guided_regex", {"response_format": {"type": "json_object"}, "guided_regex": "a"}),
        ("structured_outputs", {"structured_outputs": {"poem": "a"}}),
        ("guided_json", {"guided_json": "{"}),
        ("guided_json", {"guided_json": "[" * 100_000}),
        ("prompt", {"prompt": "a\ud83d"}),
        ("prompt", {"prompt": ["a", "\udfff"]}),
        ("guided_choice", {"guided_choice": []}),
        ("guided_regex", {"guided_regex": "a{1,3"}),
        ("guided_grammar", {"guided_grammar": "nothing"}),
        ("ignore_eos", {"guided_regex": "a", "ignore_eos": True}),
        ("min_tokens", {"guided_regex": "a", "min_tokens": 1}),
        ("logprobs", {"logprobs": 21}),
        ("prompt_logprobs", {"prompt_logprobs": 0}),
        ("logit_bias", {"logit_bias": {"97": 101}}),
        ("logit_bias", {"logit_bias": {str(VOCAB): 1}}),
        ("logit_bias", {"logit_bias": {"word": 1}}),
        ("stop", {"stop": ""}),
        ("stop", {"stop": 3}),
        ("stop", {"stop": ["a"] * 65}),
        ("stop", {"stop": "a" * 1025}),
        ("stop", {"stop": "\ud800"}),
        ("cache_salt", {"cache_salt": "\ud800"}),
        ("guided_regex", {"guided_regex": "\ud800"}),
        ("prompt", {"prompt": [[97]] * 9, "n": 128}),
        ("stop_token_ids", {"stop_token_ids": [VOCAB]}),
        ("min_tokens", {"min_tokens": 17}),
        ("seed", {"seed": 2**64}),
        ("max_tokens", {"max_tokens": 10**23}),
        ("top_k", {"top_k": -(2**63) - 1}),
        ("kv_policy", {"kv_policy": "magic"}),
        ("kv_budget", {"kv_budget": 65}),
        ("kv_budget", {"kv_budget": 0}),
        ("kv_sinks", {"kv_sinks": -1}),
        ("kv_recent", {"kv_recent": 0}),
        ("kv_window", {"kv_window": 0}),
        ("kv_buget", {"kv_buget": 8}),
    ],
    ids=str,
)
def test_a_bad_completion_is_refused_by_name(served: Served, param: str, body: dict[str, Any]) -> None:
    found = error(served, "completions", 400, **{"prompt": "a"} | body)
    assert found["param"] == param
    assert param in found["message"]
    assert found["type"] == "invalid_request_error"


A_TOOL = {"type": "function", "function": {"name": "f"}}
NO_DOCUMENT = {"type": "json_schema", "json_schema": {"name": "x", "schema": False}}
NO_TOOLS_ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("messages", {"messages": None}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "hi"}),
        ("messages[0].role", {"messages": [{"content": "no role"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 3}]}),
        ("messages[1].content[1]", {"messages": [*HELLO, {"role": "user", "content": [TEXT_PART, IMAGE_PART]}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("messages[0].audio", {"messages": [{"role": "user", "content": "a", "audio": {"id": "1"}}]}),
        ("messages", {"messages": [{"role": "user", "content": "a" * 513}]}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": NO_TOOLS_ALLOWED, "tools": [A_TOOL]}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "none"}}}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        *(("response_format", {"response_format": NO_DOCUMENT, "tools": tools}) for tools in ([], [A_TOOL])),
        ("messages", {"messages": [{"role": "user", "content": "a\ud83d"}]}),
        ("modalities", {"modalities": ["audio"]}),
        ("echo", {"echo": True}),
        *(
            ("messages[1].tool_calls", {"messages": [*HELLO, {"role": "assistant", "tool_calls": calls}]})
            for calls in ("x", [None], [1], {"a": 1}, [{"function": "f"}], [{"function": {"arguments": "{}"}}])
        ),
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
        ("max_completion_tokens", {"max_completion_tokens": 1.5}),
    ],
    ids=str,
)
def test_a_bad_chat_is_refused_by_name(served: Served, param: str, body: dict[str, Any]) -> None:
    assert error(served, CHAT, 400, **{"messages": HELLO} | body)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"logprobs": False, "n": 1, "parallel_tool_calls": True, "service_tier": "auto", "store": False},
    ],
)
def test_an_unsupported_field_without_effect_is_accepted(served: Served, body: dict[str, Any]) -> None:
    assert served.post(CHAT, messages=HELLO, **body).status_code == 200


def test_a_refusal_shows_the_value(served: Served) -> None:
    assert error(served, "completions", 400, prompt="a", max_tokens="many")["message"].endswith(', not "many"')
    long = error(served, "completions", 400, prompt="a", max_tokens="x" * 10**6)
    assert len(long["message"]) < 200


def test_an_over_long_prompt_has_openais_code_and_the_numbers(served: Served) -> None:
    found = error(served, "completions", 400, prompt="a" * 513)
    assert found["code"] == "context_length_exceeded"
    assert "513" in found["message"]
    assert "512" in found["message"]


def test_an_unknown_model_is_404_with_the_served_names(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        served.client.completions.create(model="gpt-9", prompt="a")
    assert caught.value.code == "model_not_found"
    assert NAMES[0] in caught.value.message


def test_a_request_that_breaks_in_the_engine_is_500(served: Served) -> None:
    found = error(served, "completions", 500, prompt=[97, BREAKS], max_tokens=9)
    assert found["type"] == "server_error"
    assert "not finite" in found["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_bad_prompt_ends_the_others_sent_with_it(slow: Served, stream: bool) -> None:
    got = slow.post("completions", prompt=[[97] * 8, [98, BREAKS]], max_tokens=400, stream=stream)
    assert "not finite" in got.text
    slow.wait_until_free()
    assert sum(request.id in slow.engine.cancelled for request in slow.engine.submitted) == 1


def test_a_dead_engine_is_503(slow: Served) -> None:
    slow.engine.alive = False
    assert error(slow, "completions", 503, prompt="a")["code"] == "engine_died"


def test_broken_json_is_400(served: Served) -> None:
    got = served.http.post("/v1/completions", content='{"prompt": ', headers={"content-type": "application/json"})
    assert got.status_code == 400
    assert "JSON" in got.json()["error"]["message"]


def test_a_body_that_is_too_large_is_413(served: Served) -> None:
    got = served.http.post("/v1/completions", content=b" " * (LARGEST_BODY + 1))
    assert got.status_code == 413
    assert f"{LARGEST_BODY:,} bytes" in got.json()["error"]["message"]


def test_a_whole_number_may_be_written_with_a_point(served: Served) -> None:
    got = served.post("completions", prompt="abc", max_tokens=2.0, seed=42.0)
    assert got.json()["usage"]["completion_tokens"] == 2
    assert error(served, "completions", 400, prompt="abc", max_tokens=2.5)["param"] == "max_tokens"


def test_a_body_that_is_not_json_gets_an_error_with_the_content_type(served: Served) -> None:
    got = served.http.post("/v1/completions", data={"prompt": "a"})
    assert got.status_code == 400
    assert "application/json" in got.json()["error"]["message"]


def test_a_lone_surrogate_is_refused(served: Served) -> None:
    content = rb'{"prompt": "\ud800", "logit_bias": {"\ud800": 1}}'
    got = served.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "logit_bias"


def test_unknown_paths_and_methods_have_the_same_shape(served: Served) -> None:
    for got, status in ((served.http.get("/v1/nothing"), 404), (served.http.get("/v1/completions"), 405)):
        assert got.status_code == status
        assert list(got.json()["error"]) == ["message", "type", "param", "code"]


def test_a_bug_is_500_without_its_traceback(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = channel()
    engine.default_kv = None  # type: ignore[assignment]
    with serving(engine, tokenizer, None) as served:
        found = error(served, "completions", 500, prompt="a", kv_budget=8)
        assert served.metric('ringkv_requests_total{endpoint="/v1/completions",status="500"}') == 1
    assert found["code"] == "internal_error"
    assert "replace" not in found["message"]
    assert "unexpected error" in caplog.text


def test_a_lost_prefill_worker_says_when_to_send_the_request_again() -> None:
    answer = answer_of(revive(Failure("PrefillUnavailable", "no prefill worker is connected")), {})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(("path", "api"), [("/v1/messages", "Anthropic"), ("/v1/embeddings", "embeddings")])
def test_a_path_of_another_api_is_answered_with_its_name(served: Served, path: str, api: str) -> None:
    got = served.http.post(path, json={})
    assert got.status_code == 404
    assert api in got.json()["error"]["message"]
    assert "/v1/chat/completions" in got.json()["error"]["message"]
