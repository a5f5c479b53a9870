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


def test_its_length_counts_what_is_held_back_too(byte_level: Tokenizer):
    stream = TextStream(byte_level.detokenizer(), ["never"])
    shown = "".join(map(stream.push, byte_level.encode("fox neve")))
    assert (shown, stream.length, stream.stopped) == ("fox ", 8, None)
    assert stream.finish() == "neve"
