"""manual: a long, real text that every machine with Python has, for a demonstration."""

from collections.abc import Callable
from pydoc_data.topics import topics

# Of Python's reference manual, which `help()` shows.
CHAPTERS = (
    *("exceptions", "try", "raise", "with", "class", "for", "while", "if", "import", "naming", "function", "calls"),
    *("execmodel", "string-methods", "typesseq", "formatstrings", "specialnames"),
)


def manual(tokens: int, count: Callable[[str], int]) -> str:
    """Whole paragraphs of the manual, up to so many tokens by `count`."""
    taken: list[str] = []
    for paragraph in "\n\n".join(topics[name] for name in CHAPTERS if name in topics).split("\n\n"):
        tokens -= count(paragraph + "\n\n")
        if tokens < 0:
            break
        taken.append(paragraph)
    return "\n\n".join(taken)
