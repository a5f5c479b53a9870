"""Answers with a tokenizer whose tokens begin with their space, like SentencePiece's."""

from collections.abc import Iterator

import pytest
import tokenizers
from tokenizers import decoders, models

from ringkv.base.events import TokenLogprob
from ringkv.server.run.answer import best
from ringkv.server.run.generation import TokenOutput
from ringkv.server.run.schemas import CompletionBody
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import channel


@pytest.fixture(scope="module")
def words() -> Iterator[Served]:
    inner = tokenizers.Tokenizer(models.BPE(vocab={"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}, merges=[("▁", "a")]))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    with serving(channel(), Tokenizer(inner, "words", None, ()), template) as served:
        yield served


def test_a_completion_keeps_the_space_after_its_prompt(words: Served) -> None:
    got = words.post("completions", prompt="▁a", max_tokens=3).json()
    assert got["choices"][0]["text"] == " a a a"


def test_a_chat_message_begins_without_a_space(words: Served) -> None:
    got = words.post("chat/completions", messages=[{"role": "user", "content": "▁a"}], max_tokens=3).json()
    assert got["choices"][0]["message"]["content"] == "a a a"


def answer(*logprobs: float) -> list[TokenOutput]:
    return [TokenOutput(n, "x", n, n == 0, TokenLogprob(value)) for n, value in enumerate(logprobs)]


def test_the_highest_mean_log_probability_wins_within_each_prompt() -> None:
    unlikely, likely, long = answer(-3.0), answer(-1.0), answer(-0.5, -0.5, -0.5, -0.5)
    body = CompletionBody(prompt=["a", "b"], best_of=3, n=2, logprobs=0)
    assert best([unlikely, likely, long, likely, unlikely, unlikely], body) == [long, likely, likely, unlikely]


def test_log_probabilities_that_were_not_requested_are_not_returned() -> None:
    (kept,) = best([answer(-3.0), answer(-1.0)], CompletionBody(prompt="a", best_of=2))
    assert [output.logprob for output in kept] == [None]
