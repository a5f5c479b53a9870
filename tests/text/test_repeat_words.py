"""The words that ask a model to repeat its prompt, in its vocabulary."""

from pathlib import Path

from ringkv.base.repeat_words import RepeatWords
from ringkv.text.repeat_words import FIRST, LATER, repeat_words
from ringkv.text.tokenizer import Tokenizer
from tests import byte_tokenizer


def test_words_are_tokens_of_the_models_vocabulary(tmp_path: Path) -> None:
    found = repeat_words(byte_tokenizer.save(tmp_path))
    decode = Tokenizer.from_directory(tmp_path).decode
    assert (decode(list(found.first)), decode(list(found.later))) == (FIRST, LATER)
    assert (found.before(0), found.before(7), found.longest) == (found.first, found.later, len(LATER))


def test_a_model_without_a_tokenizer_is_not_asked(tmp_path: Path) -> None:
    assert repeat_words(tmp_path) == RepeatWords()
