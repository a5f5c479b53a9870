from hypothesis import given
from hypothesis import strategies as st

from ringkv.text.stream import TextStream
from ringkv.text.tokenizer import Tokenizer


@given(before=st.text(alphabet="héllo 日😀"), after=st.text(alphabet="héllo 日😀"))
def test_a_stop_string_cut_across_tokens_ends_the_text(byte_level: Tokenizer, before: str, after: str):
    stream = TextStream(byte_level.detokenizer(), ["🎉🎉"])
    text = "".join(map(stream.push, byte_level.encode(before + "🎉🎉" + after))) + stream.finish()
    assert text == before
    assert stream.stopped == "🎉🎉"


def test_the_length_includes_held_text(byte_level: Tokenizer):
    stream = TextStream(byte_level.detokenizer(), ["never"])
    shown = "".join(map(stream.push, byte_level.encode("fox neve")))
    assert (shown, stream.length, stream.stopped) == ("fox ", 8, None)
    assert stream.finish() == "neve"


def test_stop_strings_are_ignored_in_the_first_min_tokens(byte_level: Tokenizer):
    tokens = byte_level.encode("a.b.c.d")
    for min_tokens, text in ((0, "a"), (1, "a"), (2, "a.b"), (3, "a.b"), (4, "a.b.c")):
        stream = TextStream(byte_level.detokenizer(), ["."], min_tokens)
        assert "".join(map(stream.push, tokens)) + stream.finish() == text
        assert stream.stopped == "."


@given(text=st.text(max_size=30), stop=st.text(min_size=1, max_size=3))
def test_the_text_ends_before_the_first_stop_string(byte_level: Tokenizer, text: str, stop: str):
    stream = TextStream(byte_level.detokenizer(), [stop])
    sent = "".join(stream.push(token) for token in byte_level.encode(text)) + stream.finish()
    assert sent == text.split(stop)[0]
    assert stream.stopped == (stop if stop in text else None)


@given(st.text(max_size=30))
def test_the_length_counts_every_character_once_it_is_whole(byte_level: Tokenizer, text: str):
    stream = TextStream(byte_level.detokenizer(), ["no such text at all, it is too long"])
    for token in byte_level.encode(text):
        stream.push(token)
    assert stream.length == len(text)
