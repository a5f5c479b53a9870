"""A long real text for demonstrations: Python's reference manual, which every Python includes."""

from collections.abc import Callable
from pydoc_data.topics import topics

# Topics of `help()`.
CHAPTERS = (
    *("exceptions", "try", "raise", "with", "class", "for", "while", "if", "import", "naming", "function", "calls"),
    *("execmodel", "string-methods", "typesseq", "formatstrings", "specialnames"),
)


def whole_manual() -> str:
    """Return all chapters."""
    return "\n\n".join(topics[name] for name in CHAPTERS if name in topics)


def manual(tokens: int, count: Callable[[str], int]) -> str:
    """Return whole paragraphs of the manual, at most `tokens` as counted by `count`."""
    taken: list[str] = []
    for paragraph in whole_manual().split("\n\n"):
        tokens -= count(paragraph + "\n\n")
        if tokens < 0:
            break
        taken.append(paragraph)
    return "\n\n".join(taken)
