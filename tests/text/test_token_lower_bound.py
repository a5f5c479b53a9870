"""The bound, compared with the tokens of the same texts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ringkv.base.errors import PromptTooLong
from ringkv.text.pieces import byte_alphabet
from ringkv.text.token_lower_bound import TokenLowerBound
from ringkv.text.tokenizer import Tokenizer
from tests.refusals import refusal

LONG = ["Ġ" * 16, "-" * 12, "the", "Ġthe", "ing", "Ġ" * 3 + "return", "<|end|>"]
TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from(
        [
            " " * 16,
            "-" * 12,
            "the",
            " the",
            "ing",
            "   return",
            "<|end|>",
            "e\u0301",
            "ΐ",
            "한",
            "\u212a",
            "\U0001d400",
            "ᾂ",
        ]
    )
).map("".join)

Make = Callable[[], tokenizers.Tokenizer]


def byte_level() -> tokenizers.Tokenizer:
    """Bytes, and words of LONG, each merged from left to right."""
    words = [word for word in LONG if not word.startswith("<")]
    starts = dict.fromkeys(word[:end] for word in words for end in range(2, len(word) + 1))
    vocabulary = {entry: id for id, entry in enumerate([*byte_alphabet(), *starts])}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [(start[:-1], start[-1]) for start in starts]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>")])
    return made


def composing() -> tokenizers.Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.NFC()
    return made


def lowering() -> tokenizers.Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return made


@pytest.mark.parametrize("make", [byte_level, composing, lowering])
@given(text=TEXTS)
def test_no_text_has_fewer_tokens(make: Make, text: str) -> None:
    inner = make()
    bound = TokenLowerBound.of(inner)
    assert bound is not None
    assert bound(text) <= len(inner.encode(text).ids)


@given(text=st.text(max_size=60) | st.text("hello world", max_size=60))
def test_no_text_of_a_sentencepiece_tokenizer_has_fewer_tokens(
    sentencepiece_inner: tokenizers.Tokenizer, text: str
) -> None:
    bound = TokenLowerBound.of(sentencepiece_inner)
    assert bound is not None
    assert bound(text) <= len(sentencepiece_inner.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(("text", "tokens"), [(" " * 1600, 100), ("-" * 120, 8), ("a" * 900, 100), ("", 0)])
def test_the_bound_counts_letters_by_the_longest_entry_with_letters(text: str, tokens: int) -> None:
    assert Tokenizer(byte_level(), "made", None, ()).token_lower_bound(text) == tokens


def without_a_byte() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE({char: id for id, char in enumerate(byte_alphabet()) if char != "a"}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def swallowing_spaces() -> tokenizers.Tokenizer:
    made = byte_level()
    made.add_special_tokens([AddedToken("<mask>", rstrip=True)])
    return made


def collapsing_spaces() -> tokenizers.Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.Replace(Regex(" +"), " ")
    return made


def dropping_spaces() -> tokenizers.Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


def straightening_quotes() -> tokenizers.Tokenizer:
    """Each ” has three bytes, and its replacement one; eight of those are a token."""
    runs = ['"' * length for length in (2, 4, 8)]
    vocabulary = {entry: id for id, entry in enumerate([*byte_alphabet(), *runs])}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [(run[: len(run) // 2],) * 2 for run in runs]))
    made.normalizer = normalizers.Replace("”", '"')
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def of_whole_words() -> tokenizers.Tokenizer:
    vocabulary = {**byte_alphabet(), "[UNK]": 256}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=50))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (straightening_quotes, "”" * 8),
        (of_whole_words, "a" * 1000),
        (without_a_byte, "a" * 1000),
        (swallowing_spaces, "<mask>" + " " * 1000),
        (collapsing_spaces, " " * 1000),
        (dropping_spaces, " " * 1000),
    ],
)
def test_a_tokenizer_that_drops_or_merges_characters_has_no_bound(make: Make, text: str) -> None:
    tokenizer = Tokenizer(make(), "made", None, ())
    assert len(tokenizer.encode(text)) <= 1
    assert tokenizer.token_lower_bound(text) == 0
    tokenizer.check_length(text, 1)


def test_without_a_bound_only_a_text_beyond_all_reason_is_refused() -> None:
    tokenizer = Tokenizer(dropping_spaces(), "made", None, ())
    with refusal("prompt", "1,048,577 .* 1,048,576", PromptTooLong):
        tokenizer.check_length("a" * (2**20 + 1), 1)
    tokenizer.check_length("a" * (2**20 + 1), 2**15)


def test_a_text_that_cannot_fit_is_refused_with_the_numbers_and_one_that_may_is_not() -> None:
    tokenizer = Tokenizer(byte_level(), "made", None, ())
    tokenizer.check_length(" " * 16, 1)
    with refusal("input", "17 characters.* 2 tokens; 1 tokens", PromptTooLong):
        tokenizer.check_length(" " * 17, 1, "input")


@pytest.mark.parametrize("character", [" ", "a", "é"])
def test_the_real_tokenizer_has_a_bound_for_every_text(smollm2_text: Path, character: str) -> None:
    tokenizer = Tokenizer.from_directory(smollm2_text)
    text = character * 5000
    assert 0 < tokenizer.token_lower_bound(text) <= len(tokenizer.encode(text))
