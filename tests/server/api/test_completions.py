from typing import Any

import pytest

from tests.server.conftest import NAMES, Served
from tests.server.echo import IM_END, answer


def text(prompt: str, count: int) -> str:
    return bytes(answer(prompt.encode(), count)).decode()


def test_the_official_client_gets_the_answer(served: Served) -> None:
    got = served.client.completions.create(model=NAMES[0], prompt="hello", max_tokens=12)
    assert got.object == "text_completion"
    assert got.model == NAMES[0]
    assert [(choice.index, choice.text, choice.finish_reason) for choice in got.choices] == [
        (0, text("hello", 12), "length")
    ]


def test_sixteen_tokens_are_generated_by_default(served: Served) -> None:
    got = served.client.completions.create(model=NAMES[0], prompt="ab")
    assert got.choices[0].text == text("ab", 16)


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]])
def test_a_prompt_may_be_text_or_ids_alone_or_in_a_list(served: Served, prompt: object) -> None:
    assert served.post("completions", prompt=prompt, max_tokens=5).json()["choices"][0]["text"] == "abcab"


@pytest.mark.parametrize("prompts", [["abc", "xy"], [[97, 98, 99], [120, 121]]])
def test_several_prompts_keep_their_order(served: Served, prompts: list[object]) -> None:
    got = served.post("completions", prompt=prompts, max_tokens=4).json()
    assert [(choice["index"], choice["text"]) for choice in got["choices"]] == [(0, "abca"), (1, "xyxy")]
    assert got["usage"]["prompt_tokens"] == 3 + 2
    assert got["usage"]["completion_tokens"] == 4 + 4
    assert got["usage"]["total_tokens"] == 13


def test_n_answers_follow_each_prompt_and_its_tokens_count_once(served: Served) -> None:
    got = served.post("completions", prompt=["abc", "xy"], n=2, max_tokens=3, seed=5).json()
    assert [choice["text"] for choice in got["choices"]] == ["abc", "abc", "xyx", "xyx"]
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]
    assert got["usage"]["prompt_tokens"] == 3 + 2
    assert [request.sampling.seed for request in served.engine.submitted[-4:]] == [5, 6, 5, 6]


def test_an_end_of_sequence_counts_and_has_no_text(served: Served) -> None:
    got = served.post("completions", prompt=[104, 105, IM_END], max_tokens=9).json()
    assert got["choices"][0]["text"] == "hi"
    assert got["choices"][0]["finish_reason"] == "stop"
    assert got["usage"]["completion_tokens"] == 3


def test_ignore_eos_gives_exactly_max_tokens(served: Served) -> None:
    got = served.post("completions", prompt=[104, 105, IM_END], max_tokens=9, ignore_eos=True).json()
    assert got["choices"][0]["text"] == "hihihi"
    assert got["choices"][0]["finish_reason"] == "length"
    assert got["usage"]["completion_tokens"] == 9


def test_a_stop_token_ends_the_answer_without_its_text(served: Served) -> None:
    got = served.post("completions", prompt="abcd", stop_token_ids=[ord("c")], max_tokens=9).json()
    assert got["choices"][0]["text"] == "ab"
    assert got["choices"][0]["finish_reason"] == "stop"
    assert got["usage"]["completion_tokens"] == 3


def test_usage_has_the_counters_of_the_cache(served: Served) -> None:
    """4 sinks and a ring of 16 entries; 30 prompt tokens and 39 output tokens are fed, the last one is not."""
    got = served.post("completions", prompt="x" * 30, max_tokens=40, kv_policy="streaming", kv_budget=20).json()
    seen = 30 + 39
    laps_of_the_ring = len([p for p in range(30, seen) if (p - 4) % 16 == 0])
    assert got["usage"]["kv"] == {
        "policy": "streaming",
        "capacity": 20,
        "kept": 20,
        "evicted": seen - 20,
        "ring_wraps": laps_of_the_ring,
        "bytes_held": 64 * 10,  # all of the slot is reserved
    }


def test_the_full_cache_may_be_requested_and_ends_the_answer_when_it_is_full(served: Served) -> None:
    got = served.post("completions", prompt="x" * 60, max_tokens=40, kv_policy="full").json()
    assert got["usage"]["kv"]["policy"] == "full"
    assert got["usage"]["kv"]["evicted"] == 0
    assert got["usage"]["kv"]["capacity"] == served.engine.limits.capacity
    assert got["usage"]["completion_tokens"] == 64 - 60 + 1
    assert got["choices"][0]["finish_reason"] == "length"
    chunks = served.chunks("completions", prompt="x" * 60, max_tokens=40, kv_policy="full")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]


def test_a_request_without_kv_fields_takes_the_servers_cache(served: Served) -> None:
    served.post("completions", prompt="x", max_tokens=1)
    assert served.engine.submitted[-1].kv is None


def test_logprobs_come_as_parallel_lists(served: Served) -> None:
    got = served.client.completions.create(model=NAMES[0], prompt="ab", max_tokens=3, logprobs=2)
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "a"]
    assert logprobs.token_logprobs == [-0.25] * 3
    assert logprobs.top_logprobs == [{"a": -0.25, "b": -1.25}, {"b": -0.25, "c": -1.25}, {"a": -0.25, "b": -1.25}]
    assert logprobs.text_offset == [0, 1, 2]


def test_logprobs_0_returns_only_the_sampled_tokens(served: Served) -> None:
    got = served.post("completions", prompt="ab", max_tokens=2, logprobs=0).json()
    assert got["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.25}, {"b": -0.25}]


def test_explicit_nulls_and_unknown_fields_change_nothing(served: Served) -> None:
    nulls = ("stop", "n", "seed", "logprobs", "logit_bias", "stream", "stream_options", "echo", "suffix", "best_of")
    body = dict.fromkeys(nulls) | {"user": "me", "unheard_of": [1], "kv_unheard_of": None}
    assert served.post("completions", prompt="ab", max_tokens=3, **body).json()["choices"][0]["text"] == "aba"


def test_the_model_may_be_left_out_or_named_by_an_alias(served: Served) -> None:
    assert served.post("completions", prompt="a", max_tokens=1).json()["model"] == NAMES[0]
    assert served.post("completions", prompt="a", max_tokens=1, model=NAMES[1]).json()["model"] == NAMES[1]


def complete(served: Served, **body: Any) -> Any:
    got = served.post("completions", **{"temperature": 0, "max_tokens": 1} | body)
    assert got.status_code == 200, got.text
    return got.json()


def test_a_harness_gets_the_prompts_log_probabilities_and_one_token_more(served: Served) -> None:
    """lm-eval's request: token ids, one token, greedy."""
    (choice,) = complete(served, prompt=[[97, 98, 99]], logprobs=1, echo=True)["choices"]
    scores = choice["logprobs"]
    assert choice["text"] == "abca"
    assert scores["tokens"] == ["a", "b", "c", "a"]
    # The toy's log-probability of a prompt token is -id, of a sampled token -0.25; the first token has none.
    assert scores["token_logprobs"] == [None, -98.0, -99.0, -0.25]
    assert scores["top_logprobs"] == [None, {"b": -98.0}, {"c": -99.0}, {"a": -0.25}]
    assert scores["text_offset"] == [0, 1, 2, 3]


def test_each_choice_has_its_own_prompt_before_it(served: Served) -> None:
    got = complete(served, prompt=["ab", "xyz"], echo=True, max_tokens=2, n=2)
    assert [choice["text"] for choice in got["choices"]] == ["abab", "abab", "xyzxy", "xyzxy"]
    assert all(choice["logprobs"] is None for choice in got["choices"])
    assert (got["usage"]["prompt_tokens"], got["usage"]["completion_tokens"]) == (5, 8)


def test_a_stream_begins_with_the_prompt(served: Served) -> None:
    chunks = served.chunks("completions", prompt="abc", echo=True, max_tokens=3, logprobs=0)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["abca", "b", "c"]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0, 1, 2, 3], [4], [5]]


def test_a_long_prompt_is_scored_through_all_its_chunks(served: Served) -> None:
    prompt = [97 + n % 26 for n in range(100)]
    assert served.engine.limits.chunk < 50
    (choice,) = complete(served, prompt=prompt, echo=True, logprobs=0)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, *(-float(token) for token in prompt[1:]), -0.25]


def test_half_a_code_point_at_the_prompts_end_is_shown(served: Served) -> None:
    (choice,) = complete(served, prompt=[[97, 0xC3]], echo=True, logprobs=0)["choices"]
    assert choice["text"] == "a\ufffda"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


def test_a_stop_string_in_the_prompt_ends_nothing(served: Served) -> None:
    (choice,) = complete(served, prompt="abc", stop="b", echo=True, max_tokens=9)["choices"]
    assert choice["text"] == "abca"


@pytest.mark.parametrize("logprobs", [None, 1])
def test_best_of_returns_n_answers(served: Served, logprobs: int | None) -> None:
    got = complete(served, prompt=["ab", "c"], best_of=3, n=2, max_tokens=4, logprobs=logprobs)
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in got["choices"]] == ["abab", "abab", "cccc", "cccc"]
    assert [choice["logprobs"] is None for choice in got["choices"]] == [logprobs is None] * 4
    assert got["usage"]["completion_tokens"] == 2 * 3 * 4  # all generated tokens


def test_answers_to_one_prompt_prefill_it_once(fresh: Served) -> None:
    complete(fresh, prompt="abcdefgh" * 4, n=3)
    assert [request.tokens for request in fresh.engine.submitted] == [tuple(b"abcdefgh" * 4)] * 3
    chunks = [line.work.start for line in fresh.engine.engine.log if hasattr(line, "work")]
    assert chunks == [0, 8, 16, 24]
