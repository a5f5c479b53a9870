"""repeat_words: asks a model, in words, to repeat its prompt, as KVzip does (arXiv 2505.23416, section 3.2)."""

from pathlib import Path

from ringkv.base.repeat_words import RepeatWords
from ringkv.text.tokenizer import Tokenizer

FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with"


def repeat_words(folder: Path) -> RepeatWords:
    """Return the words in a model's vocabulary; none if its directory has no tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        return RepeatWords()
    first, later = Tokenizer.from_directory(folder).encode_batch([FIRST, LATER], add_special_tokens=False)
    return RepeatWords(tuple(first), tuple(later))
