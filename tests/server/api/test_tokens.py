from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

from ringkv.server.api.tokens import token_texts
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import TEMPLATE, Served, serving
from tests.server.echo import channel


def test_a_text_is_tokens_and_back(served: Served) -> None:
    got = served.http.post("/tokenize", json={"prompt": "aé<|im_end|>", "return_token_strs": True}).json()
    assert got["tokens"] == [97, 0xC3, 0xA9, 257]
    assert (got["count"], got["max_model_len"]) == (4, served.engine.limits.longest_prompt + 1)
    assert got["token_strs"][0] == "a"
    back = served.http.post("/detokenize", json={"tokens": got["tokens"]}).json()
    assert back == {"prompt": "aé<|im_end|>"}


@pytest.mark.parametrize("text", ["", "ab", "naïve — 🌊", "日本語\n\tx", "a<|im_end|>é"])
def test_the_texts_of_tokens_join_to_the_text(served: Served, text: str) -> None:
    got = served.http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert len(got["token_strs"]) == got["count"]
    assert "".join(got["token_strs"]) == text
    ends = {len(text[:n].encode()) for n in range(len(text) + 1)} if "<" not in text else None  # a token is a byte
    for place, one in enumerate(got["token_strs"], 1):
        assert ends is None or bool(one) == (place in ends)


def test_half_a_code_point_at_the_end_is_a_replacement_character(tokenizer: Tokenizer) -> None:
    serving = SimpleNamespace(tokenizer=tokenizer)
    assert token_texts(serving, [97, 0xC3]) == ["a", "\ufffd"]  # type: ignore[arg-type]
    assert token_texts(serving, [0xC3, 97]) == ["", "\ufffda"]  # type: ignore[arg-type]


def test_a_conversation_is_the_prompt_that_a_chat_would_be(fresh: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    got = fresh.http.post("/tokenize", json={"messages": messages}).json()
    fresh.post("chat/completions", messages=messages)
    assert got["tokens"] == list(fresh.engine.submitted[-1].tokens)


def test_tokenizer_info_has_the_fields_that_harnesses_need(served: Served) -> None:
    assert served.http.get("/tokenizer_info").json() == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "chat_template": TEMPLATE,
    }


def test_tokenizer_info_has_special_tokens_and_the_template_without_tools(tokenizer: Tokenizer) -> None:
    special = {"eos_token": "<|im_start|>", "pad_token": "<|im_end|>"}
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    with_special = Tokenizer(inner, "roles", None, tokenizer.eos_ids, special)
    template = ChatTemplate({"tool_use": "with tools", "default": "plain"}, {})
    with serving(channel(), with_special, template) as served:
        info = served.http.get("/tokenizer_info").json()
    assert (info["eos_token"], info["pad_token"]) == ("<|im_start|>", "<|im_end|>")
    assert info["chat_template"] == "plain"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"messages": []}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_an_invalid_body_is_400(served: Served, path: str, body: Any, param: str) -> None:
    got = served.http.post(path, json=body)
    assert (got.status_code, got.json()["error"]["param"]) == (400, param)
