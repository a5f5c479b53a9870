"""What clients may send, each field strictly of its type, or null. What is unknown is kept aside, for `refusals`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from ringkv.base.errors import InvalidRequest
from ringkv.base.sampling import SamplingParams
from ringkv.server.kv_fields import KVFields
from ringkv.server.whole import Whole, whole

Prompts = list[str] | list[list[int]]
Turn = dict[str, Any]  # {"role": ..., "content": ...}; what else it may hold, the model's template decides

PROMPT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


def as_prompts(value: Any) -> Prompts:
    """A prompt as OpenAI allows it (string, strings, ids, lists of ids) as a list of prompts."""
    match value:
        case str():
            return [value]
        case [str(), *_] if all(type(item) is str for item in value):
            return list(value)
        case [int(), *_] if _is_ids(value):
            return [value]
        case [[*_], *_] if all(_is_ids(item) for item in value):
            return list(value)
        case []:
            nothing: list[list[int]] = [[]]
            return nothing
    raise ValueError("it must be a string, a list of strings, a list of token ids or a list of lists of token ids")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


class StreamOptions(BaseModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JSONSchema(BaseModel):
    name: str | None = None
    document: dict[str, Any] | bool = Field(alias="schema")


class ResponseFormat(BaseModel):
    """schema: of a json_object, as some servers take it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None
    document: dict[str, Any] | bool | None = Field(default=None, alias="schema")


Count = Annotated[int, Field(ge=1, le=128), BeforeValidator(whole)]
Likeliest = Annotated[int, Field(ge=0, le=SamplingParams.MAX_LOGPROBS), BeforeValidator(whole)]


class GenerationBody(KVFields):  # type: ignore[misc, valid-type]  # made when loaded
    """The fields that all endpoints share, with those of the cache.

    prompt_field, format_field: what clients call these where they differ.
    """

    prompt_field: ClassVar[str]
    format_field: ClassVar[str] = "response_format"

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[Annotated[int, Field(strict=False)], float] | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Whole], Field(max_length=1024)] | None = None
    min_tokens: Whole | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def choices(self) -> int:
        """Answers that are given to each prompt."""
        return 1

    @property
    def answers(self) -> int:
        """Answers that are made for each prompt."""
        return self.choices

    @property
    def logprob_count(self) -> int | None:
        """How many likeliest tokens to report with each of an answer's; None reports nothing."""
        return None

    @property
    def format(self) -> ResponseFormat | None:
        """What the text of an answer must be; None where that is not said."""
        raise NotImplementedError


class ChoicesBody(GenerationBody):
    """The fields of chats and of completions, whose answers have choices."""

    stream_options: StreamOptions | None = None
    n: Count | None = None
    max_tokens: Whole | None = None
    response_format: ResponseFormat | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def format(self) -> ResponseFormat | None:
        return self.response_format


class CompletionBody(ChoicesBody):
    prompt_field = "prompt"
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "The sea is", "max_tokens": 16, "temperature": 0}]}
    )

    prompt: Annotated[Prompts, PlainValidator(as_prompts), WithJsonSchema(PROMPT)]
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: Likeliest | None = None
    add_special_tokens: bool | None = None

    @property
    def answers(self) -> int:
        return max(self.choices, self.best_of or 0)

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs


class Function(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


class Named(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: Named


class ChatBody(ChoicesBody):
    prompt_field = "messages"
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"messages": [{"role": "user", "content": "Name three rivers of Europe."}], "max_tokens": 64},
                {"messages": [{"role": "user", "content": "Hello"}], "kv_policy": "snapstream", "kv_budget": 512},
            ]
        }
    )

    messages: Annotated[list[Turn], Field(min_length=1)]
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Likeliest | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @property
    def logprob_count(self) -> int | None:
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise InvalidRequest(f"top_logprobs is {self.top_logprobs}; it needs logprobs to be true", "top_logprobs")
        return None
