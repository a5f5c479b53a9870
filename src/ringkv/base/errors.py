"""Every error a user can meet. Messages say what happened, the number, and the remedy.

Only `server` uses status codes. They are in parentheses, and 500 for classes without one.
"""


class RingKVError(Exception):
    """Base of all errors meant for users; its text is one clear sentence."""


class InvalidRequest(RingKVError):
    """This request cannot be served as it is (400). `param` names the field at fault, if there is one."""

    param: str | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param or self.param


class PromptTooLong(InvalidRequest):
    """The prompt has more tokens than the model or the staging takes."""

    param = "prompt"


class EmptyPrompt(InvalidRequest):
    """The prompt has no tokens."""

    param = "prompt"


class BudgetTooSmall(InvalidRequest):
    """The budget is smaller than what the policy must keep."""

    param = "kv_budget"


class BadToken(InvalidRequest):
    """A token id is outside the vocabulary."""

    param = "prompt"


class Unsupported(InvalidRequest):
    """ringkv does not implement this field or value."""


class UnknownModel(RingKVError):
    """There is no such catalogue name, file, directory or hub id (404)."""


class UnknownRequest(RingKVError):
    """Nothing is remembered of this request (404)."""


class PullFailed(RingKVError):
    """A model could not be downloaded: there is no network, or no disk space."""


class BadWeights(RingKVError):
    """A checkpoint is truncated, corrupt or incomplete."""


class UnsupportedModel(RingKVError):
    """ringkv does not implement this architecture, or one of its settings."""


class BadCache(RingKVError):
    """A cache folder is full, read-only, or writable by other users."""


class DoesNotFit(RingKVError):
    """The requested slots do not fit in memory."""


class RequestFailed(RingKVError):
    """One running request failed; the others continue."""


class Refused(RingKVError):
    """The server takes no such call, whatever it asks for."""


class Unauthorized(Refused):
    """The API key is missing or unknown (401)."""


class WrongHost(Refused):
    """The call was sent to another host's name (421)."""


class TooSlow(Refused):
    """The client did not send its body in time (408)."""


class BodyTooLarge(Refused):
    """The body has more bytes than the server takes (413)."""


class EncodedBody(Refused):
    """The body is compressed."""


class URLTooLong(Refused):
    """The URL is longer than the server takes (414)."""


class HeadersTooLarge(Refused):
    """The headers have more bytes than the server takes (431)."""


class Busy(RingKVError):
    """The request may be served later (503). `retry_after`: seconds after which it may, if they are known."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Busy):
    """The API key has used up its requests a minute (429)."""


class BodiesFull(Busy):
    """The bodies in flight leave no room for this one."""


class QueueFull(Busy):
    """Too many requests, tokens or grammars wait."""


class DeadlineExceeded(Busy):
    """The request's timeout passed before its first token."""


class EngineRestarting(Busy):
    """The engine has ended and is started again."""


class PrefillUnavailable(Busy):
    """The request's prefill worker was lost, or there is none."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)


class Draining(Busy):
    """The server is stopping."""


class EngineDied(RingKVError):
    """The engine process ended (503)."""
