"""Observe: middleware that adds a request id, counts responses, logs a line and formats unexpected errors."""

from time import perf_counter
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringkv.base import log_lines
from ringkv.base.errors import Busy
from ringkv.server.protocol.errors import NOT_ANSWERED, answer_of, kind_of
from ringkv.server.protocol.scope import ARRIVED, REQUEST_ID, STATUS, STREAM_ERROR
from ringkv.server.run.metrics import Metrics
from ringkv.server.watch.log import Describe, Log, described, usable_id

HEADER = b"x-request-id"
ENDPOINTS = {
    "/",
    "/dashboard",
    "/ringkv/live",
    "/ringkv/history",
    "/health",
    "/ready",
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


def endpoint_of(scope: Scope) -> str:
    """Return the path. All other paths share a label; otherwise a scanner could fill our memory."""
    return scope["path"] if scope["path"] in ENDPOINTS else "other"


class Observe:
    """log: receives one line per request; None disables it. describe: makes the line."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: Log | None = None, describe: Describe = described) -> None:
        self._app = app
        self._metrics, self._log, self._describe = metrics, log, describe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        scope[ARRIVED] = perf_counter()
        tag = (HEADER, usable_id(dict(scope["headers"]).get(HEADER)) or uuid4().hex.encode())
        scope[REQUEST_ID] = tag[1].decode()
        log_lines.REQUEST_ID.set(scope[REQUEST_ID])

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[STATUS] = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), tag]}
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception as error:
            if STATUS in scope:
                raise  # the response has begun, so it can only be cut short
            if isinstance(error, Busy):
                self._metrics.rejected(kind_of(error).code or type(error).__name__)
            await answer_of(error, scope)(scope, receive, tagged)
        finally:
            status = scope.get(STATUS, NOT_ANSWERED)
            if STREAM_ERROR in scope:  # the client was told 200 before
                status = scope[STREAM_ERROR].status
            self._metrics.answered(endpoint_of(scope), status)
            if self._log:
                self._log(self._describe(scope, status, perf_counter() - scope[ARRIVED]))
