"""asks: the requests of a load, the same for every engine."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """One request's arrival, in seconds since the load began, and its tokens.

    parts: ids of equal pieces of the prompt, in order; requests that share leading ids share text. None: all its own.
    """

    at: float
    prompt: int
    output: int
    parts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Ask:
    """One request as it is sent. tokens: of its prompt."""

    at: float
    prompt: str
    tokens: int
    output: int


def fitting(found: Sequence[Lengths], context: int, prompt: int, output: int) -> list[Lengths]:
    """Return the requests with at most so many tokens of prompt, of output and of both.

    A text's own tokens may differ by a few from the number it was made for, so 2% and 16 tokens stay free.
    """
    return [
        one
        for one in found
        if one.prompt <= prompt and one.output <= output and one.prompt * 1.02 + one.output + 16 <= context
    ]
