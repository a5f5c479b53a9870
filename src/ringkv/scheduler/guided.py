"""Guided: the guides of the requests that have a grammar, from their submission to their last event.

Reading a grammar may take a second, so a thread does it, while those that decode go on.
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

PATIENCE = 0.005  # seconds to wait for a guide where there is nothing else to do


class Allowed(NamedTuple):
    """By slot, which tokens may be drawn; by request, why its guide cannot say."""

    tokens: dict[int, bytes]
    failures: dict[str, Failure]


class Guided:
    def __init__(self, make: MakeGuide | None) -> None:
        self._make = make
        self._guides: dict[str, Guide] = {}
        self._making: dict[str, Future[Guide]] = {}
        self._maker = ThreadPoolExecutor(1, "grammars")  # whose thread starts with the first of them

    def begin(self, request: Request) -> bool:
        """Whether the request has to wait for its guide, of which `take_made` tells.

        Raises Unsupported where no grammars are known.
        """
        if not request.sampling.grammar:
            return False
        if self._make is None:
            raise Unsupported("this engine runs without a tokenizer, so it knows no grammars; leave it out", "grammar")
        self._making[request.id] = self._maker.submit(self._make, request.sampling.grammar)
        return True

    def take_made(self) -> Iterator[tuple[str, BaseException | None]]:
        """The requests whose guides are there now, or why they cannot be: InvalidRequest, or a library's own error."""
        for name in [name for name, future in self._making.items() if future.done()]:
            future = self._making.pop(name)
            if (error := future.exception()) is None:
                self._guides[name] = future.result()
            yield name, error

    def wait(self) -> None:
        """For the next guide, a moment."""
        wait(self._making.values(), PATIENCE, FIRST_COMPLETED)

    def allowed(self, owners: Sequence[str | None], forced: Mapping[int, int], left: Callable[[str], int]) -> Allowed:
        """For each slot whose owner has a grammar and is not given its next token; `left`: how many one may draw."""
        result = Allowed({}, {})
        for slot, owner in enumerate(owners):
            if owner is None or slot in forced or owner not in self._guides:
                continue
            try:
                result.tokens[slot] = self._guides[owner].allowed(left(owner))
            except Exception as error:  # llguidance's own, whatever they are: they are this request's alone
                result.failures[owner] = failure_of(owner, error)
        return result

    def take(self, events: Iterable[Event], given: Iterable[str | None]) -> None:
        """Tokens were drawn, but those of `given` requests: a grammar is of what is drawn."""
        given = set(given)
        for event in events:
            if isinstance(event, Token) and event.request_id in self._guides and event.request_id not in given:
                self._guides[event.request_id].take(event.token)

    def end(self, events: Iterable[Event]) -> list[Event]:
        """Forget those whose last event is here; one whose text was cut short ends for its length."""
        return [self._ended(event) if isinstance(event, Finished | Failed) else event for event in events]

    def _ended(self, event: Finished | Failed) -> Event:
        if future := self._making.pop(event.request_id, None):
            future.cancel()
        guide = self._guides.pop(event.request_id, None)
        if guide is not None and guide.is_cut and isinstance(event, Finished) and event.reason == "stop":
            return replace(event, reason="length")
        return event
