"""ClosingSearch: a short sequence of tokens that completes a text under a grammar."""

from llguidance import LLMatcher, LLTokenizer

TRIED = 64  # allowed tokens with the lowest ids to try; these are single characters in most vocabularies
QUOTE, BRACES, LETTER = '"', ("}", "]"), "x"  # tokens that close a JSON value; a token that is allowed only in a string


class ClosingSearch:
    """A greedy search: forced tokens first, then closing tokens, then other allowed tokens in turn.

    The result is short for JSON grammars. For other grammars the search may fail.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        def ids(*words: str) -> list[int]:
            pieces = [tokenizer.tokenize_str(word) for word in words]
            return [piece[0] for piece in pieces if len(piece) == 1]

        self._quote, self._braces, self._letter = ids(QUOTE), ids(*BRACES), ids(LETTER)

    def find(self, matcher: LLMatcher, limit: int) -> list[int] | None:
        """Return at most `limit` tokens; empty if the text is complete already, None if the search fails."""
        matcher, path = matcher.deep_copy(), list[int]()
        while not matcher.is_accepting():
            following = matcher.compute_ff_tokens() or self._closing(matcher.compute_bitmask(), len(path))
            path += following
            if not following or len(path) > limit or not matcher.consume_tokens(following):
                return None
        return path

    def _closing(self, mask: bytes, turn: int) -> list[int]:
        """Return a closing token, else one of the first allowed tokens, a different one each `turn`."""

        def allowed(token: int) -> bool:
            return bool(mask[token // 8] >> token % 8 & 1)

        in_string = any(map(allowed, self._letter))  # a brace closes nothing there
        closers = self._quote if in_string else [*self._quote, *self._braces]
        if closing := next(filter(allowed, closers), None):
            return [closing]
        bits = int.from_bytes(mask, "little")
        for _ in range(turn % min(TRIED, bits.bit_count()) if bits else 0):
            bits &= bits - 1
        return [(bits & -bits).bit_length() - 1] if bits else []
