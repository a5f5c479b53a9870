"""Maps errors to HTTP statuses and JSON bodies. Every body is `{"error": {message, type, param, code}}`."""

import json
import logging
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from ringkv.base import errors
from ringkv.base.errors import InvalidRequest, RingKVError
from ringkv.server.protocol.scope import REASON

log = logging.getLogger(__name__)

Body = dict[str, dict[str, str | None]]


class ErrorKind(NamedTuple):
    status: int
    type: str
    code: str | None = None


# The first matching class counts, so subclasses come before their bases.
KINDS: tuple[tuple[type[Exception], ErrorKind], ...] = (
    (errors.PromptTooLong, ErrorKind(400, "invalid_request_error", "context_length_exceeded")),
    (errors.Unsupported, ErrorKind(400, "invalid_request_error", "unsupported")),
    (errors.InvalidRequest, ErrorKind(400, "invalid_request_error")),
    (errors.UnknownModel, ErrorKind(404, "invalid_request_error", "model_not_found")),
    (errors.UnknownRequest, ErrorKind(404, "invalid_request_error", "request_not_found")),
    (errors.Unauthorized, ErrorKind(401, "invalid_request_error", "invalid_api_key")),
    (errors.WrongHost, ErrorKind(421, "invalid_request_error", "wrong_host")),
    (errors.TooSlow, ErrorKind(408, "invalid_request_error", "too_slow")),
    (errors.BodyTooLarge, ErrorKind(413, "invalid_request_error", "body_too_large")),
    (errors.EncodedBody, ErrorKind(415, "invalid_request_error", "encoded_body")),
    (errors.URLTooLong, ErrorKind(414, "invalid_request_error", "url_too_long")),
    (errors.HeadersTooLarge, ErrorKind(431, "invalid_request_error", "headers_too_large")),
    (errors.RateLimited, ErrorKind(429, "rate_limit_error", "rate_limit_exceeded")),
    (errors.BodiesFull, ErrorKind(503, "server_error", "bodies_full")),
    (errors.QueueFull, ErrorKind(503, "server_error", "queue_full")),
    (errors.DeadlineExceeded, ErrorKind(503, "server_error", "deadline_exceeded")),
    (errors.EngineRestarting, ErrorKind(503, "server_error", "engine_restarting")),
    (errors.PrefillUnavailable, ErrorKind(503, "server_error", "prefill_unavailable")),
    (errors.Draining, ErrorKind(503, "server_error", "draining")),
    (errors.EngineDied, ErrorKind(503, "server_error", "engine_died")),
    (RingKVError, ErrorKind(500, "server_error")),
)
LARGEST_BODY = 64 << 20  # bytes, unless the longest prompt is known; a prompt of a million tokens has a tenth of that
MESSAGES = {  # instead of the library's shorter messages
    404: "there is no such path; the API is under /v1, and /docs lists it",
    405: "this path does not take that method; /docs lists the methods",
}
FOREIGN = {  # paths of other servers' APIs
    "/v1/messages": "Anthropic's Messages API",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "reranking",
    "/api/chat": "Ollama's API",
    "/api/generate": "Ollama's API",
    "/generate": "the API of TGI and SGLang",
}
SERVED = "/v1/chat/completions, /v1/completions and /v1/responses"
UNEXPECTED = ErrorKind(500, "server_error", "internal_error")


NOT_ANSWERED = 499  # nginx's status of a client that disconnected first; it appears only in our metrics and log


class Disconnected(Exception):
    """The client disconnected before its answer was ready."""


def kind_of(error: Exception) -> ErrorKind:
    return next((kind for cls, kind in KINDS if isinstance(error, cls)), UNEXPECTED)


def body_of(error: Exception) -> Body:
    """Return an error's JSON body. The traceback of an unexpected error is logged and not sent to the client."""
    kind = kind_of(error)
    if kind is UNEXPECTED:
        log.error("unexpected error while serving a request", exc_info=error)
        return body("unexpected error in ringkv; its log has the details", kind)
    return body(str(error), kind, getattr(error, "param", None))


def answer_of(error: Exception, scope: Scope) -> Response:
    """Return the response of an error, and note in the request's scope what the log says of it."""
    content = body_of(error)
    scope[REASON] = ", ".join(filter(None, (content["error"]["param"], content["error"]["code"])))
    return JSONResponse(content, kind_of(error).status, headers=_headers(error))


def _headers(error: Exception) -> dict[str, str]:
    """Return `Retry-After` if the error says when to send the request again, and what a 401 must have."""
    if isinstance(error, errors.Unauthorized):
        return {"www-authenticate": "Bearer"}
    seconds = getattr(error, "retry_after", None)
    return {} if seconds is None else {"retry-after": str(ceil(seconds))}


def body(message: str, kind: ErrorKind, param: str | None = None) -> Body:
    sendable = message.encode(errors="backslashreplace").decode()  # a lone surrogate cannot be encoded as UTF-8
    return {"error": {"message": sendable, "type": kind.type, "param": param, "code": kind.code}}


async def _answer(request: Request, error: Exception) -> Response:
    match error:
        case Disconnected():
            return Response(status_code=NOT_ANSWERED)
        case RequestValidationError():
            return answer_of(_first_invalid(error.errors()), request.scope)
        case HTTPException():
            status = error.status_code
            kind = ErrorKind(status, "invalid_request_error" if status < 500 else "server_error")
            message = MESSAGES.get(status, str(error.detail))
            if status == 404 and (api := FOREIGN.get(request.url.path)):
                message = f"ringkv does not serve {api}; it serves {SERVED}"
            return JSONResponse(body(message, kind), status, headers=error.headers)
    return answer_of(error, request.scope)


def _first_invalid(invalid: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return the first validation error as one sentence. `param` is the outermost field."""
    first = invalid[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['ctx']['error']}")
    path = [str(part) for part in first["loc"][1:]]
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return InvalidRequest(f"the body must be a JSON object, sent as Content-Type: application/json ({message})")
    value = first.get("input")
    shown = f", not {json.dumps(value, ensure_ascii=False):.80}" if isinstance(value, str | int | float) else ""
    return InvalidRequest(f"{'.'.join(path)}: {message}{shown}", path[0])


# The expected errors; the middleware `Observe` handles the others.
HANDLERS: dict[Any, Any] = dict.fromkeys((RingKVError, RequestValidationError, HTTPException, Disconnected), _answer)
