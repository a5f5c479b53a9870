"""Admission: how many requests and prompt tokens may wait, checked before a request is handed to the engine.

Every slot has the same memory, allocated at start, so a request runs as soon as a slot is free and its prompt fits
into the staging, whatever its length.
Admission therefore needs no estimate: it counts the answers that are not finished, less the number of slots.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from ringkv.base.errors import DeadlineExceeded, QueueFull
from ringkv.base.request import Request
from ringkv.server.run.generation import OutputStream
from ringkv.server.run.metrics import ModelMetrics

LONGEST_RETRY = 120  # seconds

Groups = Sequence[Sequence[Request]]
"""Requests by prompt; those of one prompt share its prefill."""

Reason = Literal["queue_requests", "queue_tokens", "deadline"]


@dataclass(frozen=True)
class QueueLimits:
    """requests: answers that wait for a slot. tokens: of prompts without a first token of an answer."""

    requests: int
    tokens: int


class Admission:
    """Counts requests between their admission and their end. Use it from one event loop.

    service: returns the seconds for which a request held its slot recently; 0 if none has.
    """

    def __init__(self, limits: QueueLimits, slots: int, service: Callable[[], float], metrics: ModelMetrics) -> None:
        self.limits = limits
        self.metrics, self._slots, self._service = metrics, slots, service
        self._unfinished = Counter[str]()  # answers by owner
        self._prompts = 0  # without a first token
        self.tokens = 0  # of these prompts

    @property
    def length(self) -> int:
        """Requests that wait for a slot."""
        return max(0, self._unfinished.total() - self._slots)

    def retry_after(self) -> int:
        """Return the seconds in which the queue empties if requests take as long as recently; 1 to `LONGEST_RETRY`.

        The queue is of requests without a slot or of prompts without a first token, whichever are more.
        """
        waiting = max(self.length, self._prompts)
        return min(max(1, ceil(waiting * self._service() / self._slots)), LONGEST_RETRY)

    def admit(self, groups: Groups) -> "Ticket":
        """Take places for all requests. Raises QueueFull, and then takes none.

        Requests of one call that alone exceed a limit are admitted while nothing else waits. An owner without
        unfinished requests has a queue to itself, because a large call of another owner may have filled the queue.
        """
        owner = groups[0][0].owner
        answers, tokens = sum(map(len, groups)), sum(len(group[0].tokens) for group in groups)
        places = self._slots + self.limits.requests
        is_first = not self._unfinished[owner] and answers <= places and tokens <= self.limits.tokens
        if not is_first and self._unfinished.total() + answers > places and (answers <= places or self.length):
            self._refuse(
                "queue_requests",
                f"{self.length:,} requests wait, at most {self.limits.requests:,} may, and this call has {answers:,}",
                "--max-queue",
            )
        if not is_first and self.tokens + tokens > self.limits.tokens and self.tokens:
            self._refuse(
                "queue_tokens",
                f"{self.tokens:,} prompt tokens wait, at most {self.limits.tokens:,} may, and this call has {tokens:,}",
                "--max-queue-tokens",
            )
        self.metrics.add("prompt_tokens", tokens)
        self._unfinished[owner] += answers
        self._prompts += len(groups)
        self.tokens += tokens
        return Ticket(self, groups)

    def _refuse(self, reason: Reason, numbers: str, option: str) -> None:
        self.metrics.server.rejected(reason)
        seconds = self.retry_after()
        text = f"the queue is full: {numbers}; send it again in {seconds} s, or start the server with a larger {option}"
        raise QueueFull(text, seconds)

    def too_late(self, error: DeadlineExceeded) -> DeadlineExceeded:
        """Return the error with the time after which to send the request again."""
        self.metrics.server.rejected("deadline")
        return DeadlineExceeded(str(error), self.retry_after())

    def started(self, *prompts: int) -> None:
        """Prompts of so many tokens have a first token, or none is waited for any more."""
        self._prompts -= len(prompts)
        self.tokens -= sum(prompts)

    def finished(self, owner: str, requests: int) -> None:
        self._unfinished[owner] -= requests
        if not self._unfinished[owner]:
            del self._unfinished[owner]


class Ticket:
    """The places of one HTTP request's answers and prompts."""

    def __init__(self, admission: Admission, groups: Groups) -> None:
        self._admission, self._owner = admission, groups[0][0].owner
        self._per_prompt = len(groups[0])
        self._tokens = {prompt: len(group[0].tokens) for prompt, group in enumerate(groups)}  # not yet started
        self.unfinished = sum(map(len, groups))

    def output(self, index: int, is_last: bool) -> None:
        """An output of the answer at `index` arrived."""
        if (prompt := index // self._per_prompt) in self._tokens:
            self._admission.started(self._tokens.pop(prompt))
        if is_last:
            self.unfinished -= 1
            self._admission.finished(self._owner, 1)

    def close(self) -> None:
        """Give back all places that are left."""
        self._admission.started(*self._tokens.values())
        self._admission.finished(self._owner, self.unfinished)
        self._tokens, self.unfinished = {}, 0


async def admitted(admission: Admission, groups: Groups, outputs: OutputStream) -> OutputStream:
    """Admit requests when the first output is requested, then yield their outputs, and give back their places.

    Raises QueueFull before the engine gets any of them.
    """
    ticket = admission.admit(groups)
    try:
        async with aclosing(outputs):
            async for batch in outputs:
                for index, output in batch:
                    ticket.output(index, output.finish is not None)
                yield batch
    except DeadlineExceeded as error:
        raise admission.too_late(error) from error
    except (GeneratorExit, asyncio.CancelledError):
        admission.metrics.add("requests_cancelled", ticket.unfinished)
        raise
    finally:
        ticket.close()


def sent_by(owner: str, request: Request, seconds: float) -> Request:
    """Return a request with its owner, whose timeout began when it arrived, this many seconds ago."""
    timeout = None if request.timeout is None else max(0.0, request.timeout - seconds)
    return replace(request, owner=owner, timeout=timeout)
