from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.text.answers.answer_stream import AnswerStream, content_of
from ringkv.text.answers.reader import Reader
from ringkv.text.answers.spans import AnswerPart, Content, Reasoning, ToolCall, tagged_calls, thinking
from ringkv.text.tokenizer import Tokenizer


def parts(stream: AnswerStream, tokens: Iterable[int]) -> list[AnswerPart]:
    return [*(part for token in tokens for part in stream.push(token)), *stream.finish()]


def content(stream: AnswerStream, tokens: Iterable[int]) -> str:
    return content_of(parts(stream, tokens))


@given(before=st.text(alphabet="héllo 日😀"), after=st.text(alphabet="héllo 日😀"))
def test_a_stop_string_cut_across_tokens_ends_the_text(byte_level: Tokenizer, before: str, after: str):
    stream = AnswerStream(byte_level.detokenizer(), ["🎉🎉"])
    assert content(stream, byte_level.encode(before + "🎉🎉" + after)) == before
    assert stream.stopped == "🎉🎉"


def test_the_length_includes_held_text(byte_level: Tokenizer):
    stream = AnswerStream(byte_level.detokenizer(), ["never"])
    shown = content_of(part for token in byte_level.encode("fox neve") for part in stream.push(token))
    assert (shown, stream.length, stream.stopped) == ("fox ", 8, None)
    assert stream.finish() == [Content("neve")]


def test_stop_strings_are_ignored_in_the_first_min_tokens(byte_level: Tokenizer):
    tokens = byte_level.encode("a.b.c.d")
    for min_tokens, text in ((0, "a"), (1, "a"), (2, "a.b"), (3, "a.b"), (4, "a.b.c")):
        stream = AnswerStream(byte_level.detokenizer(), ["."], min_tokens)
        assert content(stream, tokens) == text
        assert stream.stopped == "."


@given(text=st.text(max_size=30), stop=st.text(min_size=1, max_size=3))
def test_the_text_ends_before_the_first_stop_string(byte_level: Tokenizer, text: str, stop: str):
    stream = AnswerStream(byte_level.detokenizer(), [stop])
    assert content(stream, byte_level.encode(text)) == text.split(stop)[0]
    assert stream.stopped == (stop if stop in text else None)


@given(st.text(max_size=30))
def test_the_length_counts_every_character_once_it_is_whole(byte_level: Tokenizer, text: str):
    stream = AnswerStream(byte_level.detokenizer(), ["no such text at all, it is too long"])
    for token in byte_level.encode(text):
        stream.push(token)
    assert stream.length == len(text)


CALL = '<tool_call>{"name": "add", "arguments": {"text": "a. Stop: b"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "reasoning", "answer", "calls", "stopped"),
    [
        (
            "<think>The user writes Stop: so</think>It is 4. Stop: next",
            "The user writes Stop: so",
            "It is 4. ",
            0,
            True,
        ),
        (f"Well. {CALL}", "", "Well. ", 1, False),
        ("<think>S</think>S", "S", "S", 0, False),
        ("<think>.</think>St<tool_call>op: ", ".", "St<tool_call>op: ", 0, False),
    ],
)
def test_a_stop_string_is_searched_in_the_content_alone(
    byte_level: Tokenizer, text: str, reasoning: str, answer: str, calls: int, stopped: bool
) -> None:
    reader = Reader([thinking(), tagged_calls(["add"])])
    stream = AnswerStream(byte_level.detokenizer(), ["Stop:"], reader=reader)
    read = parts(stream, byte_level.encode(text))
    assert "".join(part.text for part in read if isinstance(part, Reasoning)) == reasoning
    assert content_of(read) == answer
    assert sum(isinstance(part, ToolCall) for part in read) == calls
    assert (stream.stopped is not None) == stopped
