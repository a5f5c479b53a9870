"""Against the text that decoding all tokens at once gives."""

from hypothesis import given
from hypothesis import strategies as st

from ringkv.server.transcript import Transcript
from ringkv.text.tokenizer import Tokenizer


@given(text=st.text(max_size=30), stop=st.text(min_size=1, max_size=3))
def test_the_text_is_what_stands_before_the_first_stop_string(tokenizer: Tokenizer, text: str, stop: str) -> None:
    transcript = Transcript(tokenizer.detokenizer(), [stop])
    sent = "".join(transcript.push(token) for token in tokenizer.encode(text)) + transcript.finish()
    assert sent == text.split(stop)[0]
    assert transcript.stopped == (stop in text)


@given(st.text(max_size=30))
def test_the_length_counts_every_character_once_it_is_whole(tokenizer: Tokenizer, text: str) -> None:
    transcript = Transcript(tokenizer.detokenizer(), ["no such text at all, it is too long"])
    for token in tokenizer.encode(text):
        transcript.push(token)
    assert transcript.length == len(text)
