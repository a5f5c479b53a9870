"""Texts that generated tasks are made of: prose to hide something in, and words.

Prose is WikiText-2's, where the data folder has it; else the reference of the Python language, which comes with every
Python. Words are the `wonderwords` package's, as RULER's own are.
"""

import re
from functools import lru_cache
from pathlib import Path
from pydoc_data.topics import topics

WIKITEXT = Path("text") / "wikitext-2_valid.txt"
UNKNOWN = "<unk>"  # WikiText-2's mark of a rare word
SENTENCE = re.compile(r"(?<=[.!?])\s+")


@lru_cache(maxsize=4)
def sentences(data: Path | None) -> tuple[str, ...]:
    """Of prose, in its order."""
    wikitext = None if data is None else data / WIKITEXT
    if wikitext is not None and wikitext.is_file():
        lines = wikitext.read_text(encoding="utf-8").splitlines()
        return tuple(_spaced(one) for line in lines if " = " not in line for one in _split(line) if UNKNOWN not in one)
    return tuple(one for topic in topics.values() for paragraph in topic.split("\n\n") for one in _split(paragraph))


@lru_cache(maxsize=4)
def words(kind: str) -> tuple[str, ...]:
    """Of one kind, "noun" or "adjective"; each once, of letters only."""
    from wonderwords import RandomWord

    found = RandomWord().filter(include_categories=[kind])
    return tuple(sorted({word.lower() for word in found if word.isalpha()}))


def _split(text: str) -> list[str]:
    """Sentences of some length: what is shorter is mostly a heading or an abbreviation, what is longer a table."""
    return [one for one in SENTENCE.split(" ".join(text.split())) if 30 < len(one) < 400]


def _spaced(sentence: str) -> str:
    """WikiText-2 has a space before every mark and between the parts of a compound."""
    return re.sub(r" ([,.;:!?)'])", r"\1", sentence).replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
