"""Guides: from a grammar to which tokens may come next."""

from collections.abc import Callable
from functools import cached_property

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.text.tokenizer import Tokenizer

WORD = 4  # bytes that a mask is made of
# Bounds for what one grammar may take: a second or so to begin with, a hundredth for each token.
LIMITS = LLParserLimits(verbose_errors=False)


class Guides:
    """Makes guides for one model's tokens; a `base.guide.MakeGuide`.

    load: gives the tokenizer, when the first guide is asked for. vocab: the model's, which may be larger than the
    tokenizer's; the rest is never allowed.
    """

    def __init__(self, load: Callable[[], Tokenizer], vocab: int) -> None:
        self._load, self._vocab = load, vocab

    def check(self, grammar: str) -> None:
        """Raises InvalidRequest for a grammar that cannot be used, or whose first token already takes too much."""
        try:
            self(grammar).allowed()
        except RequestFailed as error:
            raise InvalidRequest(str(error), "grammar") from error

    def __call__(self, grammar: str) -> "TokenGuide":
        """Raises InvalidRequest for a grammar that does not parse, is too large, or asks for what is not enforced."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be used: {_said(matcher)}", "grammar")
        return TokenGuide(matcher, WORD * -(-self._vocab // (8 * WORD)))

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        tokenizer = self._load()
        return LLTokenizer(tokenizer.to_json(), n_vocab=self._vocab, eos_token=list(tokenizer.eos_ids))


class TokenGuide:
    """A `base.guide.Guide`. Where a text is whole it may end; where nothing can follow, an end is all that may come."""

    def __init__(self, matcher: LLMatcher, width: int) -> None:
        """`width`: bytes of a mask."""
        self._matcher, self._width = matcher, width

    def allowed(self) -> bytes:
        mask = self._matcher.compute_bitmask()  # which may have a word more than there are tokens
        if self._matcher.is_error():
            raise RequestFailed(f"the grammar cannot say what may come next: {_said(self._matcher)}")
        return mask[: self._width].ljust(self._width, b"\0")

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


def _said(matcher: LLMatcher) -> str:
    return matcher.get_error().strip().partition("\n")[0]
