"""workload: what all engines are given: prompts of exact lengths, the same for all, and how much each request keeps."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from ringkv.text.tokenizer import Tokenizer

ROOM = 512  # tokens after a prompt that every engine makes room for
COMPRESSION = 4  # prompt tokens over kept ones, for the engines that evict
BLOCK = 32  # tokens that OpenVINO keeps or evicts together


def fitting(prompt: int, context: int) -> int:
    """The longest prompt up to `prompt` that leaves `ROOM` of the model's context."""
    return min(prompt, context - ROOM)


def budget(prompt: int) -> int:
    """Tokens of a prompt that an engine which evicts may keep: a quarter, in whole blocks."""
    return max(BLOCK, prompt // COMPRESSION // BLOCK * BLOCK)


def prompts(tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    """`count` different stretches of real text that every machine has: the sources of Python's standard library."""
    library = Path(argparse.__file__).parent
    found = [*library.glob("*.py"), *library.glob("[a-s]*/*.py")]
    sources = iter(sorted(path for path in found if path.parent.name != "site-packages"))
    return [_stretch(tokenizer, sources, length) for _ in range(count)]


def _stretch(tokenizer: Tokenizer, sources: Iterator[Path], length: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < length:
        if (source := next(sources, None)) is None:
            raise SystemExit(
                f"the standard library ends {length - len(ids):,} tokens before a prompt of {length:,} does"
            )
        ids += tokenizer.encode(source.read_text(encoding="utf-8", errors="ignore"))
    return ids[:length]
