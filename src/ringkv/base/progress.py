"""Progress: how long work tells whoever watches."""

from collections.abc import Callable

# Bytes done, bytes in all, and what is being done in a few words, e.g. "downloading part 3 of 22".
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """Nobody watches."""
