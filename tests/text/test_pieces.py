import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ringkv.base.errors import UnsupportedModel
from ringkv.text.pieces import TokenPieces, byte_alphabet
from ringkv.text.tokenizer import Tokenizer


def test_the_byte_alphabet_is_that_of_transformers_and_tokenizers():
    assert byte_alphabet() == {char: byte for byte, char in bytes_to_unicode().items()}
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())


@given(text=st.text())
def test_bytes_of_byte_level_tokens_joined_are_the_text(byte_level: Tokenizer, text: str):
    assert b"".join(map(byte_level.token_bytes, byte_level.encode(text))) == text.encode()


@given(text=st.text(alphabet="hello world é日😀\n", min_size=1))
def test_bytes_of_sentencepiece_tokens_joined_are_the_text_after_a_space(sentencepiece: Tokenizer, text: str):
    ids = sentencepiece.encode(text, add_special_tokens=False)
    assert b"".join(map(sentencepiece.token_bytes, ids)) == b" " + text.encode()


@pytest.mark.parametrize("id", [-1, 100_000, 2**40])
def test_an_id_outside_the_vocabulary_has_no_bytes(byte_level: Tokenizer, id: int):
    assert byte_level.token_bytes(id) == b""


def test_only_a_token_that_is_valid_alone_has_a_text(byte_level: Tokenizer):
    id_of = {byte_level.token_bytes(id): id for id in range(byte_level.vocab_size)}
    for _ in range(2):  # the second time it is remembered
        assert byte_level.pieces.text(id_of[b"h"]) == "h"
        assert byte_level.pieces.text(id_of[b"\xf0"]) is None
        assert byte_level.pieces.text(2**40) == ""


@pytest.mark.parametrize(("decoder", "kind"), [(decoders.WordPiece(), "WordPiece"), (None, "no decoder")])
def test_a_decoder_of_another_family_is_refused_by_name(decoder: decoders.Decoder | None, kind: str):
    inner = tokenizers.Tokenizer(models.BPE())
    inner.decoder = decoder
    with pytest.raises(UnsupportedModel, match=kind):
        TokenPieces.of(inner, "tokenizer.json")
