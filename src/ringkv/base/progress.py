"""Progress: the callback by which long tasks report progress."""

from collections.abc import Callable

# Arguments: amount done, total amount, and the task in a few words, e.g. "downloading part 3 of 22". The unit is the
# task's: bytes, tokens or graphs. Both amounts are 0 if the total is unknown.
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """Ignore progress."""
