"""RepeatWords: how a model is asked to repeat its prompt, as tokens of its vocabulary."""

from collections.abc import Callable
from typing import NamedTuple


class RepeatWords(NamedTuple):
    """first: before the prompt's beginning is repeated. later: before a part, whose tokens follow some before them."""

    first: tuple[int, ...] = ()
    later: tuple[int, ...] = ()

    def before(self, start: int) -> tuple[int, ...]:
        """Return the words before tokens from `start` on."""
        return self.later if start else self.first

    @property
    def longest(self) -> int:
        """Tokens of the longer words."""
        return max(map(len, self))


FindWords = Callable[[], RepeatWords]
"""Loads a tokenizer, so it is called when words are first needed."""


def no_words() -> RepeatWords:
    """The prompt is repeated without being asked for."""
    return RepeatWords()
