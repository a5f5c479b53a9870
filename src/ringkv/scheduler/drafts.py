"""Drafts: guesses of a request's next tokens, looked up in its own tokens.

Answers that edit code, extract or summarise repeat their prompt. If the last tokens occurred before, the tokens that
followed them are likely to follow again. No draft model is needed. The engine keeps only drafts that it samples itself.
Source: prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding), as in vLLM's n-gram speculation.
"""

from collections.abc import Sequence

NGRAM_SIZES = (4, 3)  # tokens that must be equal, the longest first


class Lookup:
    """One request's tokens, indexed by their n-grams. Memory and time are linear in the tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its latest earlier occurrence
        self._pending: list[tuple[tuple[int, ...], int]] = []  # n-grams at the end, which no token follows yet
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Add the token sampled last."""
        self._after.update(self._pending)
        self._tokens.append(token)
        end = len(self._tokens)
        self._pending = [(tuple(self._tokens[end - size :]), end) for size in NGRAM_SIZES if size <= end]

    def draft(self, limit: int) -> list[int]:
        """Return up to `limit` tokens that followed the longest n-gram at the end before; none if it is new."""
        for ngram, _ in self._pending:
            if (start := self._after.get(ngram)) is not None:
                return self._tokens[start : start + limit]
        return []
