"""Responses match the OpenAPI document, and the document describes every endpoint."""

from typing import Any

import pytest

from ringkv.server.api.chat import ChatCompletion
from ringkv.server.api.completions import Completion
from ringkv.server.api.documents import ErrorBody
from ringkv.server.api.responses import ModelResponse
from tests.server.conftest import Served

HI: Any = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "more", [{}, {"logprobs": 2}, {"echo": True, "logprobs": 0}, {"n": 2, "best_of": 3}, {"kv_policy": "full"}], ids=str
)
def test_a_completion_is_as_documented(served: Served, more: dict[str, Any]) -> None:
    Completion.model_validate(served.post("completions", prompt="ab", **more).json())


@pytest.mark.parametrize("more", [{}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}], ids=str)
def test_a_chat_is_as_documented(served: Served, more: dict[str, Any]) -> None:
    ChatCompletion.model_validate(served.post("chat/completions", messages=HI, **more).json())


def test_a_response_and_an_error_are_as_documented(served: Served) -> None:
    ModelResponse.model_validate(served.post("responses", input="hi").json())
    ErrorBody.model_validate(served.post("completions", prompt="").json())


def test_the_document_names_every_path_with_its_fields_and_examples(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/health"} <= set(
        document["paths"]
    )
    chat = document["components"]["schemas"]["ChatBody"]
    assert {"messages", "tools", "response_format", "kv_budget", "kv_protect"} <= set(chat["properties"])
    assert chat["examples"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
    assert served.http.get("/docs").status_code == 200


@pytest.mark.parametrize("body", ["ChatBody", "CompletionBody", "ResponsesBody", "TokenizeBody", "DetokenizeBody"])
def test_each_example_is_answered(served: Served, body: str) -> None:
    path = {
        "ChatBody": "/v1/chat/completions",
        "CompletionBody": "/v1/completions",
        "ResponsesBody": "/v1/responses",
        "TokenizeBody": "/tokenize",
        "DetokenizeBody": "/detokenize",
    }[body]
    examples = served.http.get("/openapi.json").json()["components"]["schemas"][body]["examples"]
    for example in examples:
        example = {**example, "tokens": [97]} if body == "DetokenizeBody" else {**example, "kv_budget": None}
        assert served.http.post(path, json=example).status_code == 200


@pytest.mark.parametrize(
    "wrong", [{"temperature": "0.5"}, {"max_tokens": True}, {"stream": "yes"}, {"stop": [1]}], ids=str
)
def test_a_value_of_another_type_is_not_guessed_at(served: Served, wrong: dict[str, Any]) -> None:
    got = served.post("completions", prompt="a", **wrong)
    assert (got.status_code, got.json()["error"]["param"]) == (400, next(iter(wrong)))
