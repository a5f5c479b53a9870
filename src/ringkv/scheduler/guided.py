"""Guided: the guides of requests that have a grammar, from submission to the last event.

Compiling a grammar may take seconds, so threads do it while other requests decode.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import NamedTuple

from ringkv.base.errors import Unsupported
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.failure import Failure, failure_of
from ringkv.base.guide import Guide, MakeGuide
from ringkv.base.request import Request

MADE_AT_ONCE = 2  # guides
GUIDE_WAIT = 0.005  # seconds to wait for a guide if there is nothing else to do


class Allowed(NamedTuple):
    """Masks of allowed tokens by slot, and failures of guides by request."""

    tokens: dict[int, bytes]
    failures: dict[str, Failure]


class Guided:
    def __init__(self, make: MakeGuide | None) -> None:
        self._make = make
        self._guides: dict[str, Guide] = {}
        self.pending: dict[str, Future[Guide]] = {}  # guides that are being made
        self._executor = ThreadPoolExecutor(MADE_AT_ONCE, "grammars")  # its threads start with the first grammars

    def begin(self, request: Request) -> bool:
        """Start to make the request's guide. Returns whether it must wait until `finished` yields it.

        Raises Unsupported if the request has a grammar and the engine has no tokenizer.
        """
        if not request.sampling.grammar:
            return False
        if self._make is None:
            raise Unsupported("this engine has no tokenizer, so it supports no grammars; leave it out", "grammar")
        self.pending[request.id] = self._executor.submit(self._make, request.sampling.grammar)
        return True

    def finished(self) -> Iterator[tuple[str, BaseException | None]]:
        """Yield each request whose guide is done, with the error if it failed: InvalidRequest, or a library's own."""
        for name in [name for name, future in self.pending.items() if future.done()]:
            future = self.pending.pop(name)
            if (error := future.exception()) is None:
                self._guides[name] = future.result()
            yield name, error

    def wait(self) -> None:
        """Wait up to `GUIDE_WAIT` for the next guide."""
        wait(self.pending.values(), GUIDE_WAIT, FIRST_COMPLETED)

    def allowed(self, owners: Sequence[str | None], forced: Mapping[int, int], left: Callable[[str], int]) -> Allowed:
        """Return the mask of each slot whose owner has a grammar and no forced token.

        left: tokens that a request may still sample.
        """
        result = Allowed({}, {})
        for slot, owner in enumerate(owners):
            if owner is None or slot in forced or owner not in self._guides:
                continue
            try:
                result.tokens[slot] = self._guides[owner].allowed(left(owner))
            except Exception as error:  # any error of llguidance fails this request only
                result.failures[owner] = failure_of(owner, error)
        return result

    def take(self, events: Iterable[Event], forced: Iterable[str | None]) -> None:
        """Advance the guides by the sampled tokens. Grammars do not cover tokens of `forced` requests."""
        forced = set(forced)
        for event in events:
            if isinstance(event, Token) and event.request_id in self._guides and event.request_id not in forced:
                self._guides[event.request_id].take(event.token)

    def end(self, events: Iterable[Event]) -> list[Event]:
        """Drop the guides of requests that end. If a guide closed the text early, "stop" becomes "length"."""
        return [self._ended(event) if isinstance(event, Finished | Failed) else event for event in events]

    def _ended(self, event: Finished | Failed) -> Event:
        if future := self.pending.pop(event.request_id, None):
            future.cancel()
        guide = self._guides.pop(event.request_id, None)
        if guide is not None and guide.is_cut and isinstance(event, Finished) and event.reason == "stop":
            return replace(event, reason="length")
        return event
