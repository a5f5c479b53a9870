"""Answers with a tokenizer whose tokens begin with their space, like SentencePiece's."""

from collections.abc import Iterator

import pytest
import tokenizers
from tokenizers import decoders, models

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
