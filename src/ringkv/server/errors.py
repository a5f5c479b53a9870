"""Which HTTP status and JSON body an error becomes: `{"error": {message, type, param, code}}`, always."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ringkv.base import errors
from ringkv.base.errors import InvalidRequest, RingKVError

log = logging.getLogger(__name__)

Body = dict[str, dict[str, str | None]]


class Kind(NamedTuple):
    status: int
    type: str
    code: str | None = None


# The first class that fits, so subclasses come before their bases.
KINDS: tuple[tuple[type[Exception], Kind], ...] = (
    (errors.PromptTooLong, Kind(400, "invalid_request_error", "context_length_exceeded")),
    (errors.Unsupported, Kind(400, "invalid_request_error", "unsupported")),
    (errors.InvalidRequest, Kind(400, "invalid_request_error")),
    (errors.UnknownModel, Kind(404, "invalid_request_error", "model_not_found")),
    (errors.EngineDied, Kind(503, "server_error", "engine_died")),
    (RingKVError, Kind(500, "server_error")),
)
LARGEST_BODY = 64 << 20  # bytes; a prompt of a million tokens has a tenth of that
WORDS = {  # where the library's say less
    404: "there is no such path; the API is under /v1, and /docs lists it",
    405: "this path does not take that method; /docs says which it takes",
    413: f"the body has more than {LARGEST_BODY:,} bytes; send less at a time",
}
UNEXPECTED = Kind(500, "server_error", "internal_error")


class Disconnected(Exception):
    """The client hung up before its answer was ready."""


def kind_of(error: Exception) -> Kind:
    return next((kind for cls, kind in KINDS if isinstance(error, cls)), UNEXPECTED)


def body_of(error: Exception) -> Body:
    """The JSON body of any error; an unexpected one is logged with its traceback, which the client does not see."""
    kind = kind_of(error)
    if kind is UNEXPECTED:
        log.error("unexpected error while serving a request", exc_info=error)
        return body("ringkv met an unexpected error; its log has the details", kind)
    return body(str(error), kind, getattr(error, "param", None))


def answer_of(error: Exception) -> Response:
    return JSONResponse(body_of(error), kind_of(error).status)


def body(message: str, kind: Kind, param: str | None = None) -> Body:
    sendable = message.encode(errors="backslashreplace").decode()  # a client's lone surrogate has no UTF-8
    return {"error": {"message": sendable, "type": kind.type, "param": param, "code": kind.code}}


def add_handlers(app: FastAPI) -> None:
    """For the errors that requests are expected to meet; `middleware` answers the others."""
    app.add_exception_handler(RingKVError, _answer)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Disconnected, _answer_nobody)


async def _answer(_: Request, error: Exception) -> Response:
    return answer_of(error)


async def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse(body_of(_first_fault(error.errors())), 400)


async def _answer_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = Kind(error.status_code, "invalid_request_error" if error.status_code < 500 else "server_error")
    said = WORDS.get(error.status_code, str(error.detail))
    return JSONResponse(body(said, kind), error.status_code, headers=error.headers)


async def _answer_nobody(*_: object) -> Response:
    return Response(status_code=499)  # nginx's number for it; only our own metrics see it


def _first_fault(faults: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """The first thing that validation found, as one sentence; the field is the outermost name."""
    fault = faults[0]
    if fault["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {fault['ctx']['error']}")
    path = [str(part) for part in fault["loc"][1:]]
    message = fault["msg"].removeprefix("Value error, ")
    if not path:
        return InvalidRequest(f"the body must be a JSON object, sent as Content-Type: application/json ({message})")
    return InvalidRequest(f"{'.'.join(path)}: {message}{_sent(fault)}", path[0])


def _sent(fault: Mapping[str, Any]) -> str:
    """What was sent, where it is a plain value."""
    value = fault.get("input")
    return f", not {json.dumps(value, ensure_ascii=False):.80}" if isinstance(value, str | int | float) else ""
