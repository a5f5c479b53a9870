"""Guide: what a request's grammar allows next. `text` makes one, where tokens are known as text; the loop asks it."""

from collections.abc import Callable
from typing import Protocol


class Guide(Protocol):
    @property
    def is_cut(self) -> bool:
        """True once the text is being brought to an end because its tokens run out."""
        ...

    def allowed(self, left: int) -> bytes:
        """Which tokens may come next, of `left` that may still come, as `Engine.sample` takes it.

        Raises RequestFailed where that cannot be said.
        """
        ...

    def take(self, token: int) -> None:
        """This one came, one of those allowed."""
        ...


MakeGuide = Callable[[str], Guide]
"""From `SamplingParams.grammar`; called in a thread of its own, one grammar after another.

Raises InvalidRequest for one that does not parse or is too large.
"""
