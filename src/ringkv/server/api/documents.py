"""Schemas of responses, for the OpenAPI document. Responses are built as plain dictionaries; tests validate them."""

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from ringkv.base.events import KVUsage

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


class CachedTokens(Document):
    cached_tokens: int


class CompletionTokens(Document):
    """A count of 0 is left out."""

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class UsageBody(Document):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionTokens | None = None
    kv: KVUsage


class Answer(Document):
    """The fields of answers with choices that chats and completions share."""

    id: str
    created: int
    model: str
    usage: UsageBody


FinishReason = Literal["stop", "length", "tool_calls", "abort"]


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
        schema = generate()  # the same one each time
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop(UNSENT, None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
