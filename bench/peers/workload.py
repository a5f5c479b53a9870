"""workload: prompts of exact lengths, the same for all engines, and the number of tokens that a request keeps."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from ringkv.text.tokenizer import Tokenizer

ROOM = 512  # output tokens that every engine reserves
COMPRESSION = 4  # prompt tokens over kept tokens, for engines that evict
BLOCK = 32  # tokens of an OpenVINO cache block


def fitting(prompt: int, context: int) -> int:
    """Return the longest prompt up to `prompt` that leaves `ROOM` tokens of the model's context."""
    return min(prompt, context - ROOM)


def budget(prompt: int) -> int:
    """Return the tokens of a prompt that an evicting engine keeps: a quarter, in whole blocks."""
    return max(BLOCK, prompt // COMPRESSION // BLOCK * BLOCK)


def prompts(tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    """Return `count` different stretches of the sources of Python's standard library, which every machine has."""
    library = Path(argparse.__file__).parent
    paths = [*library.glob("*.py"), *library.glob("[a-s]*/*.py")]
    sources = iter(sorted(path for path in paths if path.parent.name != "site-packages"))
    return [_stretch(tokenizer, sources, length) for _ in range(count)]


def _stretch(tokenizer: Tokenizer, sources: Iterator[Path], length: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < length:
        if (source := next(sources, None)) is None:
            missing = length - len(ids)
            raise SystemExit(f"the standard library is {missing:,} tokens too short for another prompt of {length:,}")
        ids += tokenizer.encode(source.read_text(encoding="utf-8", errors="ignore"))
    return ids[:length]
