"""echo, log-probabilities of the prompt's tokens, and best_of."""

from typing import Any

import pytest

from tests.server.conftest import Served


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
