"""Literals: the texts of special tokens, found in what users write so that they stay text.

A template copies a message into the prompt, and a tokenizer turns `<|im_end|>` into a control token wherever it stands.
So a private-use character, the mark, is put into each such text before rendering. After rendering the marks tell which
`<|im_end|>` the template wrote and which a user wrote; the latter is divided there, and no token covers both parts.
A text of one character cannot be divided.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

PRIVATE_USE = range(0xF0000, 0x10FFFE)  # private-use characters, which do not occur in normal text


@dataclass(frozen=True)
class PromptText:
    """A prompt before it is tokenised. No token may cover its breaks.

    breaks: ascending offsets in `text`, each inside a special token's text that a user wrote."""

    text: str
    breaks: tuple[int, ...] = ()

    def pieces(self) -> list[str]:
        """Return the text, divided at the breaks."""
        return [self.text[start:end] for start, end in pairwise((0, *self.breaks, len(self.text)))]

    def upto(self, end: int) -> "PromptText":
        """Return the first `end` characters."""
        return PromptText(self.text[:end], tuple(place for place in self.breaks if place < end))


class Literals:
    """tokens: the texts to keep apart from the tokens of the same name."""

    def __init__(self, tokens: Iterable[str]) -> None:
        tokens = [token for token in tokens if len(token) > 1]
        self._longest = max(map(len, tokens), default=0)
        # A template may compare a word, but nothing that ends like this: the beginning of a literal such as "<|".
        self._begins = frozenset(
            token[:end] for token in tokens for end in range(1, len(token)) if not token[0].isalnum()
        )
        self._first = _pattern(tokens)

    def mark(self, values: Any) -> tuple[Any, str]:
        """Return JSON values with a mark in each literal, and the mark, which no value contained; "" if none is there.

        A text that ends with the beginning of a literal is marked too: another may follow that completes it.
        """
        first = self._first
        if not first or not any(first.search(text) or self._ends_in_beginning(text) for text in _texts(values)):
            return values, ""
        free = (c for c in map(chr, PRIVATE_USE) if not any(c in text or _escape(c) in text for text in _texts(values)))
        mark = next(free)
        return self._marked(values, mark), mark

    def read(self, rendered: str, mark: str) -> PromptText:
        """Return a rendered text without its marks; those inside a literal become breaks."""
        first, *rest = rendered.replace(_escape(mark), mark).split(mark) if mark else [rendered]
        parts, breaks, length = [first], list[int](), len(first)
        for part in rest:
            breaks.append(length)
            parts.append(part)
            length += len(part)
        text = "".join(parts)
        return PromptText(text, tuple(place for place in dict.fromkeys(breaks) if self._divides(text, place)))

    def _ends_in_beginning(self, text: str) -> bool:
        ends = range(1, min(self._longest, len(text) + 1))
        return any(text[-size:] in self._begins for size in ends)

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            assert self._first is not None
            return self._first.sub(rf"\g<0>{mark}", value) + (mark if self._ends_in_beginning(value) else "")
        if isinstance(value, Mapping):
            return {self._marked(key, mark): self._marked(item, mark) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._marked(item, mark) for item in value]
        return value

    def _divides(self, text: str, place: int) -> bool:
        """Return whether an offset is inside a literal."""
        assert self._first is not None
        nearest_first = range(place - 1, max(-1, place - self._longest), -1)
        matches = ((begin, self._first.match(text, begin)) for begin in nearest_first)
        return any(begin + 1 + len(match[match.lastindex or 0]) > place for begin, match in matches if match)


def _escape(mark: str) -> str:
    """Return a mark as it is in JSON of ASCII characters."""
    return json.dumps(mark)[1:-1]


def _texts(value: Any) -> Iterator[str]:
    """Yield each text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern for the first character of a token; its last group is the rest, as long as possible."""
    tree: dict[str, Any] = {}
    for token in tokens:
        node = tree
        for char in token:
            node = node.setdefault(char, {})
        node[""] = {}
    rests = [f"{re.escape(char)}(?=({_branches(node)}))" for char, node in tree.items()]
    return re.compile("|".join(rests)) if rests else None


def _branches(node: Mapping[str, Any]) -> str:
    """Return a pattern for the texts of a tree, the longest first; time is linear in the text."""
    choices = [re.escape(char) + _branches(below) for char, below in node.items() if char]
    if "" in node and choices:
        return f"(?:{'|'.join(choices)})?"
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})" if choices else ""
