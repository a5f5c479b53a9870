import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringkv.text.tokenizer import Tokenizer

TEXTS = st.text() | st.text(alphabet="hello world  e\u0301é日本語\u200d👨👩👧🏽😀🎉क्षि\n")


def parts_of(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = tokenizer.detokenizer(**options)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@given(ids=st.lists(st.integers(0, 410)), skip=st.booleans())
def test_any_byte_level_tokens_decode_like_tokenizers(byte_level: Tokenizer, ids: list[int], skip: bool):
    whole = byte_level._inner.decode(ids, skip_special_tokens=skip)
    assert "".join(parts_of(byte_level, ids, skip_special_tokens=skip)) == whole


@given(text=TEXTS)
@example(text="👨‍👩‍👧")
def test_a_byte_level_text_never_shows_half_a_code_point(byte_level: Tokenizer, text: str):
    parts = parts_of(byte_level, byte_level.encode(text))
    assert "".join(parts) == text
    assert parts[-1] == ""
    assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")


@given(text=TEXTS.map(lambda text: re.sub("</?s>|<unk>", "", text)))
def test_a_sentencepiece_text_never_shows_half_a_code_point(sentencepiece: Tokenizer, text: str):
    ids = sentencepiece.encode(text)
    parts = parts_of(sentencepiece, ids)
    assert "".join(parts) == sentencepiece._inner.decode(ids) == text
    assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")


def runs_of_bytes() -> st.SearchStrategy[list[int]]:
    """Ids in which each run of byte tokens is valid UTF-8, or has no valid code point at all, between other tokens."""
    valid = st.text(alphabet="aé日😀").map(lambda text: [3 + byte for byte in text.encode()])
    invalid = st.lists(st.integers(3 + 0x80, 3 + 0xBF))
    other = st.lists(st.sampled_from([1, 2, *range(259, 280)]), min_size=1).filter(lambda ids: max(ids) > 2)
    return st.lists(st.tuples(valid | invalid, other)).map(
        lambda runs: [id for run in runs for ids in run for id in ids]
    )


@given(ids=runs_of_bytes())
def test_sentencepiece_tokens_decode_like_tokenizers(sentencepiece: Tokenizer, ids: list[int]):
    assert "".join(parts_of(sentencepiece, ids)) == sentencepiece._inner.decode(ids)


@given(run=st.lists(st.binary(min_size=1, max_size=1), max_size=12))
def test_each_invalid_byte_becomes_one_replacement_and_valid_neighbours_stay(
    sentencepiece: Tokenizer, run: list[bytes]
):
    whole = b"".join(run)
    lost = len(whole) - len(whole.decode(errors="ignore").encode())
    text = "".join(parts_of(sentencepiece, [3 + byte for byte in whole], continues=True))
    assert text.replace("\ufffd", "") == whole.decode(errors="ignore").replace("\ufffd", "")
    assert text.count("\ufffd") == lost + whole.decode(errors="ignore").count("\ufffd")


def test_only_the_first_space_of_a_sentencepiece_text_is_dropped(sentencepiece: Tokenizer):
    ids = sentencepiece.encode("  hello hello", add_special_tokens=False)
    assert "".join(parts_of(sentencepiece, ids)) == "  hello hello"
    assert "".join(parts_of(sentencepiece, ids, continues=True)) == "   hello hello"


@pytest.mark.parametrize("cut", range(6))
def test_output_that_continues_a_prompt_joins_it_to_one_text(sentencepiece: Tokenizer, cut: int):
    ids = sentencepiece.encode("hello world hello wor 日", add_special_tokens=False)
    prompt, output = sentencepiece.decode(ids[:cut]), parts_of(sentencepiece, ids[cut:], continues=cut > 0)
    assert prompt + "".join(output) == "hello world hello wor 日"


def test_special_tokens_are_skipped_unless_requested(byte_level: Tokenizer):
    ids = byte_level.encode("dog<|end|><tool>")
    assert byte_level.decode(ids) == "dog<tool>"
    assert byte_level.decode(ids, skip_special_tokens=False) == "dog<|end|><tool>"


def test_an_incomplete_code_point_is_one_replacement_character(byte_level: Tokenizer):
    byte = {byte_level.token_bytes(id): id for id in range(byte_level.vocab_size)}
    assert parts_of(byte_level, [byte[b"\xf0"], byte[b"\x9f"]]) == ["", "", "\ufffd"]
