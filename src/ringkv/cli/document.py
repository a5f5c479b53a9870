"""Long real texts: Python's reference manual, which every Python includes, and windows of tokens of a text.

A command measures a model on windows: the first tokens of a text in equal parts.
"""

from collections.abc import Callable
from itertools import accumulate, takewhile
from pathlib import Path
from pydoc_data.topics import topics

from ringkv.base.errors import InvalidRequest
from ringkv.cli.prompts import read_file

CHARACTERS_PER_TOKEN = 16  # at most, on average
MANUAL = "Python's manual"
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
    paragraphs = whole_manual().split("\n\n")
    totals = accumulate(count(paragraph + "\n\n") for paragraph in paragraphs)
    fitting = takewhile(lambda each: each[0] <= tokens, zip(totals, paragraphs, strict=False))
    return "\n\n".join(paragraph for _, paragraph in fitting)


def read_windows(folder: Path, text: Path | None, limit: int, size: int) -> list[list[int]]:
    """Return the text's first tokens, `limit` or fewer, in whole windows of `size` tokens.

    text: a file; None is Python's manual. Raises InvalidRequest if there are fewer tokens than a window has.
    """
    from ringkv.text.tokenizer import Tokenizer

    limit = max(limit, 0)
    beginning = (whole_manual() if text is None else read_file(str(text)))[: limit * CHARACTERS_PER_TOKEN]
    tokens = Tokenizer.from_directory(folder).encode(beginning, add_special_tokens=False)[:limit]
    if len(tokens) < size:
        raise InvalidRequest(
            f"{text or MANUAL} gives {len(tokens):,} tokens, and {size:,} are needed; give a longer text, or more "
            "tokens"
        )
    return [list(tokens[start : start + size]) for start in range(0, len(tokens) - size + 1, size)]
