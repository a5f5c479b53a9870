"""Schemas of responses, for the OpenAPI document. Responses are built as plain dictionaries; tests validate them."""

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

EVENTS: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
STATUSES = {400: "The request is invalid or not supported", 404: "No such model, request or path"}
STATUSES |= {413: "The body is too large"}
STATUSES |= {500: "This request failed", 503: "The queue is full, the timeout has passed, or there is no engine"}
UNSENT = "422"  # FastAPI's status for an invalid body; ours is 400
DESCRIPTION = "An LLM server with a fixed amount of KV cache memory per request. Errors have OpenAI's format."


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(Document):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Document):
    error: Error


class PageCounts(Document):
    held: int
    resident: int
    step: int
    read: int
    skipped: int
    recalled: int
    prefetched: int
    prefetch_hits: int


class HeadCounts(Document):
    fewest: int
    most: int


class KV(Document):
    """KV cache counters; entries are per layer and key-value head. `pages` is left out unless steps read
    some pages, `heads` unless heads hold different numbers of entries."""

    policy: str
    capacity: int
    kept: int
    evicted: int
    ring_wraps: int
    bytes_held: int
    pages: PageCounts | None = None
    heads: HeadCounts | None = None


class CachedTokens(Document):
    cached_tokens: int


class ReasoningTokens(Document):
    reasoning_tokens: int


class CompletionTokens(Document):
    """A count of 0 is left out."""

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
    """Response of /v1/responses; OpenAI's reference describes the other fields."""

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
    kv_policy: str
    kv_budget: int


class Cards(Document):
    object: Literal["list"]
    data: list[Card]


class Health(Document):
    status: Literal["ok"]


class Version(Document):
    version: str


class SlotLayout(Document):
    """The fields of a slot in a tick of /ringkv/live that do not change while its request runs."""

    sinks: int
    selected: int
    protected: int
    base: int
    ring: int
    again: int


class Kept(Document):
    """counts: for each prompt token, how many of `of` key-value heads kept it. budget: entries of its slot."""

    id: str
    tokens: int
    layers: int
    heads: int
    of: int
    counts: list[int]
    policy: str
    budget: int
    layout: SlotLayout


class StepTimes(Document):
    """In seconds; null if there was nothing to measure."""

    p50: float | None
    p95: float | None


class Times(StepTimes):
    p99: float | None


class Point(Document):
    """Counts are of the interval before `t`, the seconds since the server's start. Requests are those of all models;
    of them the server rejected some because of load, others were invalid (status 4xx), or it failed (`errors`)."""

    t: float
    prompt_tokens: int
    output_tokens: int
    requests: int
    invalid: int
    errors: int
    rejected: int
    evicted: int
    cancelled: int
    running: int
    waiting: int
    free_slots: int
    ttft: Times
    tpot: Times
    step: StepTimes


class History(Document):
    interval: float
    now: float
    points: list[Point]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a path."""
    return {status: {"model": ErrorBody, "description": STATUSES[status]} for status in statuses}


def answers(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a path that generates: a JSON body, an event stream, or an error."""
    return {200: {"model": model, "content": EVENTS, "description": "The answer, or its events"}} | errors(*STATUSES)


def document(app: FastAPI) -> None:
    """Remove FastAPI's validation error, which the application never sends, from the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop(UNSENT, None)
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
