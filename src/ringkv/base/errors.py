"""Every error a user can meet.

    RingKVError
    ├── InvalidRequest          this request cannot be served as it is          (HTTP 400)
    │   ├── PromptTooLong       more prompt tokens than the model or the staging takes
    │   ├── EmptyPrompt         the prompt has no tokens
    │   ├── BudgetTooSmall      the budget is smaller than what the policy must keep
    │   ├── BadToken            a token id outside the vocabulary
    │   └── Unsupported         a field or value that ringkv does not implement
    ├── UnknownModel            no such catalogue name, file, directory or hub id (HTTP 404)
    ├── UnknownRequest          nothing is remembered of this request           (HTTP 404)
    ├── PullFailed              a model could not be downloaded: no network or disk space
    ├── BadWeights              a checkpoint that is truncated, corrupt or incomplete
    ├── UnsupportedModel        an architecture or setting that ringkv does not implement
    ├── BadCache                a cache folder that is full, read-only, or writable by other users
    ├── DoesNotFit              the requested slots do not fit in memory
    ├── RequestFailed           one running request failed; the others continue  (HTTP 500)
    ├── Refused                 the server takes no such call, whatever it asks for
    │   ├── Unauthorized        the API key is missing or unknown                (HTTP 401)
    │   ├── WrongHost           the call was sent to another host's name         (HTTP 421)
    │   ├── TooSlow             the client did not send its body in time         (HTTP 408)
    │   ├── BodyTooLarge                                                         (HTTP 413)
    │   ├── URLTooLong                                                           (HTTP 414)
    │   └── HeadersTooLarge                                                      (HTTP 431)
    ├── Busy                    the request may be served later
    │   ├── RateLimited         its API key has used up its requests a minute    (HTTP 429)
    │   ├── BodiesFull          the bodies in flight leave no room for its body  (HTTP 503)
    │   ├── QueueFull           too many requests, tokens or grammars wait       (HTTP 503)
    │   ├── DeadlineExceeded    its timeout passed before its first token        (HTTP 503)
    │   ├── EngineRestarting    the engine has ended and is started again        (HTTP 503)
    │   ├── PrefillUnavailable  its prefill worker was lost, or there is none    (HTTP 503)
    │   └── Draining            the server is stopping                           (HTTP 503)
    └── EngineDied              the engine process ended                         (HTTP 503)

Messages say what happened, the number, and the remedy. Only `server` uses status codes.
"""


class RingKVError(Exception):
    """Base of all errors meant for users; its text is one clear sentence."""


class InvalidRequest(RingKVError):
    """The request cannot be served as it is; `param` names the field at fault, if there is one."""

    param: str | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param or self.param


class PromptTooLong(InvalidRequest):
    param = "prompt"


class EmptyPrompt(InvalidRequest):
    param = "prompt"


class BudgetTooSmall(InvalidRequest):
    param = "kv_budget"


class BadToken(InvalidRequest):
    param = "prompt"


class Unsupported(InvalidRequest):
    pass


class UnknownModel(RingKVError):
    pass


class UnknownRequest(RingKVError):
    pass


class PullFailed(RingKVError):
    pass


class BadWeights(RingKVError):
    pass


class UnsupportedModel(RingKVError):
    pass


class BadCache(RingKVError):
    pass


class DoesNotFit(RingKVError):
    pass


class RequestFailed(RingKVError):
    pass


class Refused(RingKVError):
    pass


class Unauthorized(Refused):
    pass


class WrongHost(Refused):
    pass


class TooSlow(Refused):
    pass


class BodyTooLarge(Refused):
    pass


class URLTooLong(Refused):
    pass


class HeadersTooLarge(Refused):
    pass


class Busy(RingKVError):
    """`retry_after`: seconds after which the same request may be served, if they are known."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Busy):
    pass


class BodiesFull(Busy):
    pass


class QueueFull(Busy):
    pass


class DeadlineExceeded(Busy):
    pass


class EngineRestarting(Busy):
    pass


class PrefillUnavailable(Busy):
    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)


class Draining(Busy):
    pass


class EngineDied(RingKVError):
    pass
