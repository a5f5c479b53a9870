"""Guides: from a grammar to masks of the tokens that it allows next.

llguidance recurses once per reference while it parses a grammar, and an overflow of the stack would end the process.
So grammars are parsed in one thread with a stack for the longest chain of references that fits into
`grammar.LONGEST` characters: a link takes 2.4 to 8 kB of stack, which is at most 900 bytes per character. Masks need
no deep stack.
"""

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Protocol, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.text.grammar import LONGEST, check_text

WORD_BYTES = 4  # a mask is a whole number of words
CLOSING_TRIED = 64  # allowed tokens with the lowest ids, single characters in most vocabularies, that may close
QUOTE, BRACES, LETTER = '"', ("}", "]"), "x"  # tokens that close a JSON value; a token that is allowed only in a string
SEARCH_FROM = 256  # tokens left at the first search for a closing sequence
ERROR_CHARACTERS = 300  # of llguidance's errors that are reported
STACK = 4096 * LONGEST  # bytes of address space, over four times what was measured
OF_BUILD = re.compile(r"(?i)\s*stack backtrace:.*|\S*\.rs(:\d+)*|<non-verbose/>")  # parts of errors that say nothing
FORBIDDEN = "doesn't satisfy the grammar"  # in errors, of a token that was taken
TOO_COMPLEX = re.compile(r"(?i)too (many|big|large)|max is|limit|fuel exhausted")  # in errors
CACHED_GRAMMARS = 16  # parsed grammars kept for requests with the same grammar
# Tokens reserved because the closing sequence may grow: at most MAX_SPARE, and 1 / SPARE_SHARE of the answer's tokens.
MAX_SPARE, SPARE_SHARE = 12, 16
# These limits bound most grammars to about one second of parsing, 10 ms per mask and 100 MB.
LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000)


T = TypeVar("T")
_setting = threading.Lock()  # the stack size of new threads is a setting of the whole process


class Tokens(Protocol):
    """What guides need of a tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def to_json(self) -> str:
        """Return the content of a tokenizer.json."""
        ...


class Guides:
    """Makes guides for one model's tokens, in this process; a `base.guide.MakeGuide`.

    The limits do not bound the time for a grammar, so grammars that are not trusted need `text.guide_processes`.

    load: loads the tokenizer, called for the first guide. vocab: the model's vocabulary size; ids beyond the
    tokenizer's are never allowed.
    """

    def __init__(self, load: Callable[[], Tokens], vocab: int) -> None:
        self._load, self._vocab = load, vocab
        self._parse_cached = lru_cache(CACHED_GRAMMARS)(self._parse)
        self._deep = DeepStack(STACK, "grammars")

    def check(self, grammar: str) -> None:
        """Raise InvalidRequest for a grammar that is invalid, or whose first masks exceed the limits."""
        check_text(grammar)
        self._deep.submit(lambda: self.try_out(self._guide(grammar))).result()

    def __call__(self, grammar: str) -> "TokenGuide":
        """Return the grammar's guide.

        Raises InvalidRequest if the grammar does not parse, is too large, or has a keyword that is not enforced.
        """
        check_text(grammar)
        return self._deep.submit(self._guide, grammar).result()

    def load(self) -> None:
        """Load the tokenizer now rather than for the first guide."""
        for part in (self._search, self._ends):
            assert part

    def try_out(self, guide: "TokenGuide") -> None:
        """Compute the guide's first masks. Raises InvalidRequest if that exceeds the limits.

        A grammar may exceed a limit only after its first token.
        """
        if guide.take_any():
            guide.allowed(left=2 * SEARCH_FROM)

    def _guide(self, grammar: str) -> "TokenGuide":
        return TokenGuide(self._parse_cached(grammar).deep_copy(), self._search, self._ends)

    def _parse(self, grammar: str) -> LLMatcher:
        try:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        except BaseException as error:  # a panic of the library is not an Exception
            raise InvalidRequest(f"the grammar cannot be used: {_readable(str(error))}", "grammar") from error
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be used: {_readable(matcher.get_error())}", "grammar")
        return matcher

    @cached_property
    def _search(self) -> "ClosingSearch":
        return ClosingSearch(self._tokenizer)

    @cached_property
    def _ends(self) -> bytes:
        """The mask of all tokens that end a text."""
        width = WORD_BYTES * -(-self._vocab // (8 * WORD_BYTES))
        return sum(1 << token for token in set(self._tokenizer.eos_tokens)).to_bytes(width, "little")

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        tokenizer = self._load()
        return LLTokenizer(tokenizer.to_json(), n_vocab=self._vocab, eos_token=list(tokenizer.eos_ids))


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
        for _ in range(turn % min(CLOSING_TRIED, bits.bit_count()) if bits else 0):
            bits &= bits - 1
        return [(bits & -bits).bit_length() - 1] if bits else []


class TokenGuide:
    """A `base.guide.Guide`. A complete text may end; if nothing else can follow, only end tokens are allowed.

    When few tokens are left it searches for a closing sequence: tokens that complete the text. It commits to the
    sequence before it no longer fits. The search is repeated only when the sequence could have grown too long, or at
    half of the remaining tokens if none was found.
    """

    def __init__(self, matcher: LLMatcher, search: ClosingSearch, ends: bytes) -> None:
        """`ends`: the mask of all tokens that end a text."""
        self._matcher, self._search, self._ends = matcher, search, ends
        self._closing: list[int] | None = None  # the rest of the closing sequence, after the commitment
        self._spare: int | None = None  # tokens by which it may grow per token; fewer for short answers
        self._search_at = SEARCH_FROM  # tokens left at the next search
        self.is_cut = False

    def allowed(self, left: int) -> bytes:
        if self._spare is None:
            self._spare = min(MAX_SPARE, left // SPARE_SHARE)
        if self._closing is None and left <= self._search_at:
            self._find_closing(left, self._spare)
        if self._closing:
            return (1 << self._closing[0]).to_bytes(len(self._ends), "little")
        mask = self._mask()
        return mask if self._closing is None else bytes(a & b for a, b in zip(mask, self._ends, strict=True))

    def _mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()  # may have one word more than the vocabulary needs
        if self._matcher.is_error():
            reason = _readable(self._matcher.get_error())
            if FORBIDDEN in reason:  # the sampler's fault; the others depend on the grammar alone
                raise RequestFailed(f"no token mask can be computed from the grammar: {reason}")
            fault = "is too large or ambiguous" if TOO_COMPLEX.search(reason) else "allows no token mask"
            raise InvalidRequest(f"the grammar {fault}, so simplify it: {reason}", "grammar")
        width = len(self._ends)
        return mask[:width].ljust(width, b"\0")

    def take_any(self) -> bool:
        """Take the allowed token with the lowest id that does not end the text. Returns False if there is none."""
        tokens = int.from_bytes(self._mask(), "little") & ~int.from_bytes(self._ends, "little")
        if tokens:
            self.take((tokens & -tokens).bit_length() - 1)
        return tokens != 0

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)
        if self._closing:
            self._closing.pop(0)

    def _find_closing(self, left: int, spare: int) -> None:
        """Search for a closing sequence, and commit to it if it might not fit after one more token."""
        closing = self._search.find(self._matcher, left)
        if closing is None:
            self._search_at = left // 2
        elif (slack := left - len(closing) - spare) > 0:
            self._search_at = left - max(1, slack // (spare + 1))
        else:
            self._closing, self.is_cut = closing, True


def _readable(error: str) -> str:
    """Return an error of llguidance in one line, without paths of its build. A long one loses its middle."""
    error = " ".join(OF_BUILD.sub("", " ".join(error.split())).split())
    half = ERROR_CHARACTERS // 2
    return error if len(error) <= ERROR_CHARACTERS else f"{error[:half]} ... {error[-half:]}"


class DeepStack:
    """Runs calls one after another. size: bytes of address space; memory is only what a call uses.

    The thread starts with the first call.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._executor = ThreadPoolExecutor(1, name)

    def submit(self, call: Callable[..., T], *args: object) -> "Future[T]":
        with _setting:
            before = threading.stack_size(self._size)
            try:
                return self._executor.submit(call, *args)
            finally:
                threading.stack_size(before)
