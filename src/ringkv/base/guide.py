"""Guide: which tokens a request's grammar allows next. `text` implements it; the loop calls it."""

from collections.abc import Callable
from typing import Protocol


class Guide(Protocol):
    @property
    def is_cut(self) -> bool:
        """True once the guide closes the text early because few tokens are left."""
        ...

    def allowed(self, left: int) -> bytes:
        """Return the mask of allowed tokens, as `Engine.sample` takes it. left: tokens that may still be sampled.

        Raises RequestFailed if the mask cannot be computed.
        """
        ...

    def take(self, token: int) -> None:
        """Advance the grammar by a sampled token, which must be allowed."""
        ...


MakeGuide = Callable[[str], Guide]
"""Makes a guide from `SamplingParams.grammar`. Threads of its own call it, for different grammars at once.

Raises InvalidRequest if the grammar does not parse or is too large.
"""
