"""Prompts that are longer than any of the tokens that fit."""

import time
from typing import Any

import pytest

from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served

EIGHT_MB = 8 * 2**20


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("character", [" ", "a", "é"])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("completions", lambda text: {"prompt": text}, "prompt"),
        ("completions", lambda text: {"prompt": ["short", text]}, "prompt"),
        ("chat/completions", lambda text: {"messages": messages(text)}, "messages"),
        ("responses", lambda text: {"input": text}, "input"),
        ("responses", lambda text: {"input": "short", "instructions": text}, "input"),
    ],
)
def test_eight_megabytes_are_refused_before_they_are_tokenised(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, field: str, character: str
) -> None:
    encode = Tokenizer.encode

    def short(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        assert len(text) < 1000, "a text that cannot fit was tokenised"
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", short)
    before = time.process_time()
    answer = served.post(path, **body(character * (EIGHT_MB // len(character.encode()))))
    taken = time.process_time() - before
    found = answer.json()["error"]
    assert (answer.status_code, found["code"], found["param"]) == (400, "context_length_exceeded", field)
    assert "65,536 characters" in found["message"]
    assert "511 tokens" in found["message"] or "512 tokens" in found["message"]
    assert taken < 1


def test_a_list_of_prompts_is_tokenised_no_further_than_the_first_that_is_too_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenised: list[str] = []
    encode = Tokenizer.encode

    def recorded(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        tokenised.append(text)
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", recorded)
    assert served.post("completions", prompt=["a", "b" * 600, "c"]).status_code == 400
    assert tokenised == ["a", "b" * 600]


def test_too_many_prompts_are_refused_before_any_is_tokenised(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("tokenised"))
    found = served.post("completions", prompt=["a"] * 600, n=2).json()["error"]
    assert "1,200 answers" in found["message"]


def test_a_text_of_any_length_can_be_counted(served: Served) -> None:
    answer = served.http.post("/tokenize", json={"messages": messages("a" * 100_000)})
    assert answer.json()["count"] > 100_000
