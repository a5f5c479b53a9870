import pytest

from tests.server.conftest import NAMES, Served

HELLO = [{"role": "user", "content": "hi"}]  # the template makes "<|im_start|>user:hi<|im_end|>" of it


def test_the_official_client_gets_a_message(served: Served) -> None:
    got = served.client.chat.completions.create(model=NAMES[0], messages=HELLO)
    assert got.object == "chat.completion"
    assert got.choices[0].message.role == "assistant"
    assert got.choices[0].message.content == "user:hi"
    assert got.choices[0].finish_reason == "stop"
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (1 + 7 + 1, 1 + 7 + 1)


def test_text_parts_are_joined_as_the_template_joins_them(served: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    got = served.post("chat/completions", messages=[{"role": "user", "content": parts}]).json()
    assert got["choices"][0]["message"]["content"] == "user:a\nb"


def test_the_developer_role_becomes_system(served: Served) -> None:
    got = served.post("chat/completions", messages=[{"role": "developer", "content": "x"}]).json()
    assert got["choices"][0]["message"]["content"] == "system:x"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_limits_the_answer(served: Served, name: str) -> None:
    got = served.post("chat/completions", messages=HELLO, **{name: 4}).json()
    assert got["choices"][0]["message"]["content"] == "use"
    assert got["choices"][0]["finish_reason"] == "length"


def test_without_a_limit_max_tokens_is_what_the_context_leaves(served: Served) -> None:
    served.post("chat/completions", messages=HELLO)
    assert served.engine.submitted[-1].sampling.max_tokens == served.engine.limits.context - 9


@pytest.mark.parametrize(
    ("fields", "spans"),
    [({}, ((0, 1 + 15),)), ({"kv_protect": []}, ()), ({"kv_protect": [[2, 5]]}, ((2, 5),)), ({"kv_budget": 40}, ())],
)
def test_the_system_message_is_protected_if_it_fits_unless_the_request_sets_kv_protect(
    served: Served, fields: dict, spans: tuple
) -> None:
    messages = [{"role": "system", "content": "Be brief"}, *HELLO]  # "<|im_start|>system:Be brief"
    served.post("chat/completions", messages=messages, kv_window=4, **fields)
    kv = served.engine.submitted[-1].kv
    assert kv is not None
    assert kv.protect == spans


def test_without_a_system_message_nothing_is_protected(served: Served) -> None:
    served.post("chat/completions", messages=HELLO)
    assert served.engine.submitted[-1].kv is None


def test_logprobs_come_token_by_token(served: Served) -> None:
    got = served.client.chat.completions.create(
        model=NAMES[0], messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2
    )
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    second = logprobs.content[1]
    assert [entry.token for entry in logprobs.content] == ["<|im_start|>", "u", "s"]
    assert (second.logprob, second.bytes) == (-0.25, [ord("u")])
    assert [(top.token, top.logprob, top.bytes) for top in second.top_logprobs] == [
        ("u", -0.25, [ord("u")]),
        ("v", -1.25, [ord("v")]),
    ]


def test_a_model_without_a_template_refuses_chats_and_names_completions(base_model: Served) -> None:
    got = base_model.post("chat/completions", messages=HELLO)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "messages"
    assert "/v1/completions" in got.json()["error"]["message"]
    assert base_model.post("completions", prompt="ab", max_tokens=2).json()["choices"][0]["text"] == "ab"
