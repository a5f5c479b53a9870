"""text: sources and docstrings of Python's standard library, which are on every machine that trains."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

SKIPPED = {"test", "tests", "site-packages", "idlelib", "lib2to3", "encodings", "__pycache__"}
LARGEST = 300_000  # characters of a file; larger ones are tables


def files() -> Iterator[str]:
    """Yield the files' texts, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED & set(path.relative_to(root).parts) and path.stat().st_size < LARGEST:
            yield path.read_text(encoding="utf-8", errors="ignore")


class Text:
    """All files as one sequence of tokens."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self.tokens = [token for text in files() for token in (*tokenizer.encode(text).ids, end)]

    def rows(self, rng: Random, count: int, length: int) -> list[list[int]]:
        starts = [rng.randrange(len(self.tokens) - length) for _ in range(count)]
        return [self.tokens[start : start + length] for start in starts]
