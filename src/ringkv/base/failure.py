"""Errors as plain data: they cross a process boundary by class name and are raised again as the same class."""

import logging
from typing import NamedTuple

from ringkv.base import errors
from ringkv.base.errors import InvalidRequest, RequestFailed, RingKVError
from ringkv.base.log_lines import http_id

log = logging.getLogger(__name__)
_CLASSES: dict[str, type[RingKVError]] = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, RingKVError)
}


class Failure(NamedTuple):
    """An error as a message carries it; `kind` is its class name in `base.errors`."""

    kind: str
    message: str
    param: str | None = None


def describe(error: RingKVError) -> Failure:
    kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _CLASSES)
    return Failure(kind, str(error), getattr(error, "param", None))


def failure_of(request_id: str, error: BaseException) -> Failure:
    """Return the failure of one request. A RingKVError keeps its text; any other error is logged and shortened."""
    if isinstance(error, RingKVError):
        return describe(error)
    log.error("request %s failed", request_id, exc_info=error, extra={"request_id": http_id(request_id)})
    return Failure("RequestFailed", f"the engine could not serve the request ({in_short(error)}); see its log")


def revive(failure: Failure) -> RingKVError:
    """Return the error to raise; an unknown kind becomes a `RequestFailed`."""
    kind = _CLASSES.get(failure.kind, RequestFailed)
    if issubclass(kind, InvalidRequest):
        return kind(failure.message, failure.param)
    return kind(failure.message)


def in_short(error: BaseException) -> str:
    """Return an unexpected error in one line: its class, and the first line of its text."""
    text = str(error).strip().partition("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
