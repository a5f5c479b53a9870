"""Every error a user can meet.

    RingKVError
    ├── InvalidRequest          this request cannot be served as it is          (HTTP 400)
    │   ├── PromptTooLong       more prompt tokens than the model or the staging takes
    │   ├── EmptyPrompt         the prompt has no tokens
    │   ├── BudgetTooSmall      the budget is smaller than what the policy must keep
    │   ├── BadToken            a token id outside the vocabulary
    │   └── Unsupported         a field or value that ringkv does not implement
    ├── UnknownModel            no such catalogue name, file, directory or hub id (HTTP 404)
    ├── PullFailed              a model could not be downloaded: no network or disk space
    ├── BadWeights              a checkpoint that is truncated, corrupt or incomplete
    ├── UnsupportedModel        an architecture or setting that ringkv does not implement
    ├── DoesNotFit              the requested slots do not fit in memory
    ├── RequestFailed           one running request failed; the others continue  (HTTP 500)
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


class PullFailed(RingKVError):
    pass


class BadWeights(RingKVError):
    pass


class UnsupportedModel(RingKVError):
    pass


class DoesNotFit(RingKVError):
    pass


class RequestFailed(RingKVError):
    pass


class EngineDied(RingKVError):
    pass
