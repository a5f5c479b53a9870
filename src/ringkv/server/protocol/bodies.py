"""Bodies: reads request bodies, and bounds the memory of all that are in flight.

A body is in flight from its first byte until its answer has ended. It counts with its bytes and `VALUE_BYTES` for each
JSON value, which is about what it takes once it is parsed. The first `FREE` bytes of each are bounded by the number of
connections instead, so small requests never wait for large requests.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from ringkv.base.errors import BodiesFull, BodyTooLarge, EncodedBody, InvalidRequest, TooSlow
from ringkv.server.protocol.errors import LARGEST_BODY, Disconnected

MIB = 1 << 20
FREE = 64 << 10
VALUE_BYTES = 64
IN_THREAD = 64 << 10  # bytes from which a body is checked in a thread, while others are served
IN_FLIGHT = 128 * MIB
TOKEN_BYTES = 64  # a body has so many bytes for each token of the longest prompt
WAIT = 2.0  # seconds that a body waits for room
RETRY = 5  # seconds after which a body that found no room may be sent again
WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
# A string, which may lack its end, or a character of JSON's structure. Possessive, so its time is linear.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},:]', re.DOTALL)
_DEEPER = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


@dataclass(frozen=True)
class JSONLimits:
    """depth: of arrays and objects. keys: of all objects. values: of all arrays and objects, themselves included."""

    depth: int = 256
    keys: int = 1 << 14
    values: int = 1 << 18


def check_json(text: bytes, limits: JSONLimits) -> None:
    """Raise InvalidRequest if the text exceeds a limit or is not UTF-8. Other errors are left to the parser.

    Parsing takes time and memory by the value, and it holds the interpreter's lock until it ends.
    """
    if b"\0" in text:
        raise InvalidRequest("the body is not JSON in UTF-8: it has a zero byte")
    if most_values(text) > limits.keys or text.count(b"{") + text.count(b"[") > limits.depth:
        _count(text, limits)


def most_values(text: bytes) -> int:
    """Return an upper bound of the number of values, which counts the commas within strings too. It is fast."""
    return 1 + text.count(b",") + text.count(b"{") + text.count(b"[")


def _count(text: bytes, limits: JSONLimits) -> None:
    depth = keys = 0
    values = 1
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth += (step := _DEEPER.get(token, 0))
        keys += token == b":"
        values += token == b"," or step > 0
        if depth > limits.depth:
            raise InvalidRequest(f"the body is nested more than {limits.depth:,} deep; flatten it")
        if keys > limits.keys:
            raise InvalidRequest(f"the body has more than {limits.keys:,} keys; send fewer")
        if values > limits.values:
            raise InvalidRequest(f"the body has more than {limits.values:,} values; send several requests")


@dataclass(frozen=True)
class BodyLimits:
    """largest: bytes of one body. in_flight: bytes of all. seconds: for a body to arrive."""

    largest: int = LARGEST_BODY
    in_flight: int = 2 * IN_FLIGHT
    seconds: float = 30.0
    json: JSONLimits = JSONLimits()

    @classmethod
    def of(cls, longest_prompt: int, largest: int | None, seconds: float) -> "BodyLimits":
        """Return the limits for a server that takes prompts of so many tokens. largest: None takes the default."""
        if largest is None:
            largest = max(MIB, TOKEN_BYTES * longest_prompt)
        json = JSONLimits(values=max(JSONLimits.values, 2 * longest_prompt))
        return cls(largest, max(IN_FLIGHT, 2 * largest + VALUE_BYTES * json.values), seconds, json)


class Budget:
    """Bytes that bodies may take; use it from one event loop."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._given = asyncio.Event()

    async def take(self, count: int) -> None:
        """Wait for so many bytes. Raises BodiesFull after `WAIT` seconds."""
        try:
            async with asyncio.timeout(WAIT):
                while count > self.free:
                    self._given.clear()
                    await self._given.wait()
        except TimeoutError:
            raise BodiesFull(
                f"bodies of {self.size - self.free:,} bytes are being served, of {self.size:,}, and this one does not "
                f"fit; send it again in {RETRY} s",
                RETRY,
            ) from None
        self.free -= count

    def give(self, count: int) -> None:
        self.free += count
        self._given.set()


class Share:
    """What one body has taken of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._taken = budget, 0

    async def grow(self, size: int) -> None:
        """Take what a body of this size lacks. Raises BodiesFull."""
        if (lacking := size - FREE - self._taken) > 0:
            await self._budget.take(lacking)
            self._taken += lacking

    def close(self) -> None:
        self._budget.give(self._taken)
        self._taken = 0


class Bodies:
    def __init__(self, limits: BodyLimits) -> None:
        self._limits, self.budget = limits, Budget(limits.in_flight)

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncIterator[Receive]:
        """Read the whole body and yield a `receive` that returns it. It stays in flight while the block runs.

        Raises BodyTooLarge, EncodedBody, BodiesFull, TooSlow, InvalidRequest, and Disconnected if the client leaves.
        """
        if scope["method"] in WITHOUT_BODY:
            yield receive
            return
        with closing(Share(self.budget)) as share:
            body = await self._body(scope, receive, share)
            await share.grow(len(body) + VALUE_BYTES * min(most_values(body), self._limits.json.values))
            if len(body) > IN_THREAD:
                await asyncio.to_thread(check_json, body, self._limits.json)
            else:
                check_json(body, self._limits.json)
            yield replay(body, receive)

    async def _body(self, scope: Scope, receive: Receive, share: Share) -> bytes:
        headers = dict(scope["headers"])
        if (encoding := headers.get(b"content-encoding", b"identity").decode("latin-1")) != "identity":
            raise EncodedBody(f"Content-Encoding {encoding[:20]} is not supported; send the body as plain JSON")
        length = headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() and len(length) < 20 else 0
        self._check_size(declared)
        await share.grow(declared)
        chunks, size = list[bytes](), 0
        try:
            async with asyncio.timeout(self._limits.seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    self._check_size(size)
                    await share.grow(size)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise TooSlow(
                f"the body did not arrive within {self._limits.seconds:g} s ({size:,} bytes came); send it faster"
            ) from None
        return b"".join(chunks)

    def _check_size(self, size: int) -> None:
        if size > self._limits.largest:
            raise BodyTooLarge(f"the body has more than {self._limits.largest:,} bytes; send less per request")


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body in one message, and then what the original one returns."""
    unread = [body]

    async def replayed() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return replayed
