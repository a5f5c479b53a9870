"""The way out of a grammar: a short text that makes what was written whole."""

from llguidance import LLMatcher, LLTokenizer

SEVERAL = 64  # of the allowed tokens, in their order: single characters come first in most vocabularies
QUOTE, BRACES, LETTER = '"', ("}", "]"), "x"  # what ends something in JSON; what only a text may go on with


class WayOut:
    """Finds tokens that end a text: what is forced, then what closes, then any that is allowed, each time another one.

    That is short where a grammar is JSON's. In others it may lead nowhere, and there is no way out then.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        def known(*words: str) -> list[int]:
            pieces = [tokenizer.tokenize_str(word) for word in words]
            return [piece[0] for piece in pieces if len(piece) == 1]

        self._quote, self._braces, self._letter = known(QUOTE), known(*BRACES), known(LETTER)

    def find(self, matcher: LLMatcher, most: int) -> list[int] | None:
        """At most so many tokens; none where the text is whole already, None where no end was found."""
        matcher, path = matcher.deep_copy(), list[int]()
        while not matcher.is_accepting():
            following = matcher.compute_ff_tokens() or self._closing(matcher.compute_bitmask(), len(path))
            path += following
            if not following or len(path) > most or not matcher.consume_tokens(following):
                return None
        return path

    def _closing(self, mask: bytes, turn: int) -> list[int]:
        """A token that ends something, or else one of the first that are allowed, by turns."""

        def may(token: int) -> bool:
            return bool(mask[token // 8] >> token % 8 & 1)

        is_text = any(map(may, self._letter))  # where a brace ends nothing
        closers = self._quote if is_text else [*self._quote, *self._braces]
        if closing := next(filter(may, closers), None):
            return [closing]
        bits = int.from_bytes(mask, "little")
        for _ in range(turn % min(SEVERAL, bits.bit_count()) if bits else 0):
            bits &= bits - 1
        return [(bits & -bits).bit_length() - 1] if bits else []
