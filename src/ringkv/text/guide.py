"""Guides: from a grammar to which tokens may come next."""

from collections.abc import Callable
from functools import cached_property, lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.text.tokenizer import Tokenizer
from ringkv.text.way_out import WayOut

WORD = 4  # bytes that a mask is made of
NEAR = 256  # tokens left when a way out is first looked for
SAID = 300  # characters of an error that are told
KNOWN = 16  # grammars that are kept as they were read, for requests that bring the same one
SPARE, SHARE = 12, 16  # tokens that are kept for a way out that gets longer: at most so many, and a share of all
# Bounds for what one grammar may take: a second or so to begin with, a hundredth for each mask, 100 MB.
LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000)


class Guides:
    """Makes guides for one model's tokens; a `base.guide.MakeGuide`.

    load: gives the tokenizer, when the first guide is asked for. vocab: the model's, which may be larger than the
    tokenizer's; the rest is never allowed.
    """

    def __init__(self, load: Callable[[], Tokenizer], vocab: int) -> None:
        self._load, self._vocab = load, vocab
        self._read = lru_cache(KNOWN)(self._read_anew)

    def check(self, grammar: str) -> None:
        """Raises InvalidRequest for a grammar that cannot be used, or whose first token already takes too much."""
        try:
            self(grammar).allowed(left=2 * NEAR)
        except RequestFailed as error:
            raise InvalidRequest(str(error), "grammar") from error

    def __call__(self, grammar: str) -> "TokenGuide":
        """Raises InvalidRequest for a grammar that does not parse, is too large, or asks for what is not enforced."""
        return TokenGuide(self._read(grammar).deep_copy(), self._way_out, self._ends)

    def _read_anew(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be used: {_said(matcher)}", "grammar")
        return matcher

    @cached_property
    def _way_out(self) -> WayOut:
        return WayOut(self._tokenizer)

    @cached_property
    def _ends(self) -> bytes:
        """The ends of a text, as a mask."""
        width = WORD * -(-self._vocab // (8 * WORD))
        return sum(1 << token for token in set(self._tokenizer.eos_tokens)).to_bytes(width, "little")

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        tokenizer = self._load()
        return LLTokenizer(tokenizer.to_json(), n_vocab=self._vocab, eos_token=list(tokenizer.eos_ids))


class TokenGuide:
    """A `base.guide.Guide`. Where a text is whole it may end; where nothing can follow, an end is all that may come.

    When few tokens are left it looks for a way out, and takes it before it gets too long: again no sooner than it could
    have grown so long, or, where none was found, when half as many tokens are left.
    """

    def __init__(self, matcher: LLMatcher, way_out: WayOut, ends: bytes) -> None:
        """`ends`: a mask of all that ends a text."""
        self._matcher, self._way_out, self._ends = matcher, way_out, ends
        self._path: list[int] | None = None  # the way out, once it is taken
        self._spare: int | None = None  # tokens by which one token may lengthen it; few where few were asked for
        self._due = NEAR  # tokens left when a way out is looked for again
        self.is_cut = False

    def allowed(self, left: int) -> bytes:
        if self._spare is None:
            self._spare = min(SPARE, left // SHARE)
        if self._path is None and left <= self._due:
            self._look(left, self._spare)
        if self._path:
            return self._only(self._path[0])
        mask = self._mask()
        return mask if self._path is None else bytes(a & b for a, b in zip(mask, self._ends, strict=True))

    def _mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()  # which may have a word more than there are tokens
        if self._matcher.is_error():
            raise RequestFailed(f"the grammar cannot say what may come next: {_said(self._matcher)}")
        width = len(self._ends)
        return mask[:width].ljust(width, b"\0")

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)
        if self._path:
            self._path.pop(0)

    def _look(self, left: int, spare: int) -> None:
        """Take the way out if another token might make it too long."""
        path = self._way_out.find(self._matcher, left)
        if path is None:
            self._due = left // 2
        elif (room := left - len(path) - spare) > 0:
            self._due = left - max(1, room // (spare + 1))
        else:
            self._path, self.is_cut = path, True

    def _only(self, token: int) -> bytes:
        return (1 << token).to_bytes(len(self._ends), "little")


def _said(matcher: LLMatcher) -> str:
    """Its error in one line. Of a long one the end is told, which says what is wrong; what stands before says where."""
    said = " ".join(matcher.get_error().split())
    return said if len(said) <= SAID else f"... {said[-SAID:]}"
