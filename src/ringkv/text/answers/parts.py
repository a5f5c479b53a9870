"""Parts of an answer, in the order they are read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    text: str


@dataclass(frozen=True)
class Reasoning:
    """What a model thought before it answered."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool that is to be called. arguments: a JSON object, as text."""

    name: str
    arguments: str


Part = Content | Reasoning | Call
