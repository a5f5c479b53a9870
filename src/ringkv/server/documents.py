"""What answers look like, for the OpenAPI document. They are made as plain dictionaries; a test holds them to this."""

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

EVENTS: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
STATUSES = {400: "What was asked cannot be served", 404: "No such model or path", 413: "The body is too large"}
STATUSES |= {500: "This request failed", 503: "The engine has ended"}
UNSENT = "422"  # FastAPI's own answer to a bad body; ours is 400
DESCRIPTION = "Language models in a fixed amount of key-value memory per request. Errors have OpenAI's shape."


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(Document):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Document):
    error: Error


class KV(Document):
    """What the cache did; entries are per layer and key-value head."""

    policy: str
    capacity: int
    kept: int
    evicted: int
    ring_wraps: int
    bytes_held: int


class CachedTokens(Document):
    cached_tokens: int


class ReasoningTokens(Document):
    reasoning_tokens: int


class CompletionTokens(Document):
    """Each is there if it is not 0."""

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(Document):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionTokens | None = None
    kv: KV


class CompletionLogprobs(Document):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class CompletionChoice(Document):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(Document):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class Logprob(Document):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(Logprob):
    top_logprobs: list[Logprob]


class ChatLogprobs(Document):
    content: list[TokenLogprobs]
    refusal: None


class CalledFunction(Document):
    name: str
    arguments: str


class ToolCall(Document):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Document):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)


class ChatChoice(Document):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Document):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ModelResponse(BaseModel):
    """/v1/responses; what its fields beside these hold, OpenAI's reference says."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    status: Literal["completed", "incomplete"]
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class Card(Document):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class Cards(Document):
    object: Literal["list"]
    data: list[Card]


class Health(Document):
    status: Literal["ok"]


class Version(Document):
    version: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers that a path may give beside its own."""
    return {status: {"model": ErrorBody, "description": STATUSES[status]} for status in statuses}


def answers(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The answers of a path that generates: whole, or as events."""
    return {200: {"model": model, "content": EVENTS, "description": "The answer, or its events"}} | errors(*STATUSES)


def document(app: FastAPI) -> None:
    """Have the application's document say what it does say, and no more."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop(UNSENT, None)
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
