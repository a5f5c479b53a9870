"""The way out of a grammar: a short text that makes what was written whole."""

from llguidance import LLMatcher, LLTokenizer

CLOSERS = ('"', "}", "]")  # what ends something in JSON; a brace within a string ends nothing, so its quote comes first


class WayOut:
    """Finds tokens that end a text: what is forced, then what closes, then the first that is allowed.

    That is short where a grammar is JSON's. In others it may lead nowhere, and there is no way out then.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        pieces = [tokenizer.tokenize_str(closer) for closer in CLOSERS]
        self._closers = [piece[0] for piece in pieces if len(piece) == 1]

    def find(self, matcher: LLMatcher, most: int) -> list[int] | None:
        """At most so many tokens; none where the text is whole already, None where no end was found."""
        matcher, path = matcher.deep_copy(), list[int]()
        while not matcher.is_accepting():
            following = matcher.compute_ff_tokens() or self._closing(matcher.compute_bitmask())
            path += following
            if not following or len(path) > most or not matcher.consume_tokens(following):
                return None
        return path

    def _closing(self, mask: bytes) -> list[int]:
        """A token that ends something, or else the first that is allowed."""
        for token in self._closers:
            if mask[token // 8] >> token % 8 & 1:
                return [token]
        bits = int.from_bytes(mask, "little")
        return [(bits & -bits).bit_length() - 1] if bits else []
