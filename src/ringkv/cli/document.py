"""manual: a long, real text that every machine with Python has, for a demonstration."""

from collections.abc import Callable
from pydoc_data.topics import topics

CHAPTERS = ("string-methods", "with", "async")  # of Python's own reference manual, which `help()` shows


def manual(tokens: int, count: Callable[[str], int], hidden: str) -> str:
    """Paragraphs of the manual up to so many tokens by `count`, with the sentence `hidden` put into their middle."""
    paragraphs: list[str] = []
    left = tokens - count(hidden)
    for paragraph in "\n\n".join(topics[name] for name in CHAPTERS).split("\n\n"):
        left -= count(paragraph + "\n\n")
        if left < 0:
            break
        paragraphs.append(paragraph)
    paragraphs.insert(len(paragraphs) // 2, hidden)
    return "\n\n".join(paragraphs)
