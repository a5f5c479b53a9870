"""Texts for generated tasks: prose as a haystack, and words.

Prose is WikiText-2 if the data folder has it, otherwise Python's language reference, which is part of Python. Words are
from the package `wonderwords`, as in RULER.
"""

import re
from functools import lru_cache
from pathlib import Path
from pydoc_data.topics import topics

from ringkv.evaluation.needed import WORDS, check

WIKITEXT = Path("text") / "wikitext-2_valid.txt"
UNKNOWN = "<unk>"  # WikiText-2's mark of a rare word
SENTENCE = re.compile(r"(?<=[.!?])\s+")


@lru_cache(maxsize=4)
def sentences(data: Path | None) -> tuple[str, ...]:
    """Return sentences of prose, in order."""
    wikitext = None if data is None else data / WIKITEXT
    if wikitext is not None and wikitext.is_file():
        lines = wikitext.read_text(encoding="utf-8").splitlines()
        prose = (sentence for line in lines if " = " not in line for sentence in _split(line))
        return tuple(_spaced(sentence) for sentence in prose if UNKNOWN not in sentence)
    paragraphs = (paragraph for topic in topics.values() for paragraph in topic.split("\n\n"))
    return tuple(sentence for paragraph in paragraphs for sentence in _split(paragraph))


@lru_cache(maxsize=4)
def words(kind: str) -> tuple[str, ...]:
    """Return all words of a kind, "noun" or "adjective", of letters only, sorted and without duplicates.

    Raises InvalidRequest if the package is not installed.
    """
    check([WORDS])
    from wonderwords import RandomWord

    listed = RandomWord().filter(include_categories=[kind])
    return tuple(sorted({word.lower() for word in listed if word.isalpha()}))


def _split(text: str) -> list[str]:
    """Split into sentences of 30 to 400 characters. Shorter ones are mostly headings, longer ones tables."""
    return [sentence for sentence in SENTENCE.split(" ".join(text.split())) if 30 < len(sentence) < 400]


def _spaced(sentence: str) -> str:
    """Remove WikiText-2's spaces before punctuation and within compounds."""
    return re.sub(r" ([,.;:!?)'])", r"\1", sentence).replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
