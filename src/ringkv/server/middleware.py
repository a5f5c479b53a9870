"""What every HTTP answer gets: a request id to quote in a report, a count in the metrics, a line in the log, and our
shape of errors.
"""

from time import perf_counter
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringkv.server.errors import LARGEST_BODY, answer_of
from ringkv.server.metrics import Metrics
from ringkv.server.request_log import Log, described

ARRIVED = "ringkv.arrived"  # in the scope: when the request came, by `perf_counter`
HEADER = b"x-request-id"
ENDPOINTS = {
    "/health",
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
}
NOT_ANSWERED = 499  # the client went first


class Observe:
    """log: gets a line for each request; None logs none."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: Log | None = None) -> None:
        self._app = app
        self._metrics, self._log = metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        scope[ARRIVED] = perf_counter()
        status = NOT_ANSWERED
        tag = (HEADER, dict(scope["headers"]).get(HEADER) or uuid4().hex.encode())

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), tag]}
            await send(message)

        try:
            await self._app(scope, bounded(receive, scope), tagged)
        except Exception as error:
            if status != NOT_ANSWERED:
                raise  # it has begun to be answered, so all we can do is to cut it short
            await answer_of(error)(scope, receive, tagged)
        finally:
            # Any other path is one label, or a scanner could fill our memory.
            self._metrics.answered(scope["path"] if scope["path"] in ENDPOINTS else "other", status)
            if self._log:
                self._log(described(scope, status, perf_counter() - scope[ARRIVED]))


def bounded(receive: Receive, scope: Scope) -> Receive:
    """Raises HTTPException 413 where a body has, or says that it has, more than `LARGEST_BODY` bytes."""
    declared = Headers(scope=scope).get("content-length", "")
    is_declared, read = declared.isdecimal() and int(declared) > LARGEST_BODY, 0

    async def counted() -> Message:
        nonlocal read
        if is_declared:
            raise HTTPException(413)
        message = await receive()
        read += len(message.get("body", b""))
        if read > LARGEST_BODY:
            raise HTTPException(413)
        return message

    return counted
