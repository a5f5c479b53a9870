"""Drafts: guesses of a request's next tokens, looked up in its own text.

Answers that edit code, extract or summarise repeat their prompt. What followed the last tokens where they stood before
is likely to follow again. The guesses cost no model; the engine keeps only those that it samples itself.
Source: prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding), as in vLLM's n-gram speculation.
"""

from collections.abc import Sequence

SPANS = (4, 3)  # tokens that must be equal, the longest first


class Lookup:
    """One request's tokens, indexed by their n-grams. Memory and time are linear in the tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where the text went on, the last time but the current one
        self._pending: list[tuple[tuple[int, ...], int]] = []  # the n-grams at the end: nothing follows them yet
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Add the token sampled last."""
        self._after.update(self._pending)
        self._tokens.append(token)
        end = len(self._tokens)
        self._pending = [(tuple(self._tokens[end - span :]), end) for span in SPANS if span <= end]

    def draft(self, most: int) -> list[int]:
        """At most so many tokens that followed the longest repeated end of the text; none if nothing is repeated."""
        for span, _ in self._pending:
            if (start := self._after.get(span)) is not None:
                return self._tokens[start : start + most]
        return []
