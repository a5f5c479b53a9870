"""Progress: how long work tells whoever watches."""

from collections.abc import Callable

# How much is done, how much there is, and what is being done in a few words, e.g. "downloading part 3 of 22". Bytes,
# tokens, graphs: whatever the work has; 0 and 0 where that is not known.
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """Nobody watches."""
