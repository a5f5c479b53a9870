"""Steps: work that pauses, so that something else may run before it goes on."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields wherever it may pause, and returns its result."""


def finished(steps: Steps[T]) -> T:
    """Run steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
