"""Request bodies. Each field is validated strictly and may be null; unknown fields go to `model_extra`."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    WithJsonSchema,
    WrapValidator,
    create_model,
)

from ringkv.base.errors import InvalidRequest
from ringkv.base.sampling import SamplingParams
from ringkv.plan.kv_settings import PER_REQUEST

INT64 = 2**63 - 1  # messages to the engine hold integers of 64 bits


def as_integer(value: Any) -> Any:
    """Convert a float without a fraction to an int, since JSON may write 100 as 100.0. Other values pass unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int64 = Annotated[int, Field(ge=-INT64, le=INT64), BeforeValidator(as_integer)]
SPANS = list[Annotated[tuple[Int64, Int64], Field(strict=False)]]
TYPES: dict[type, Any] = {int: Int64, float: float, str: str, bool: bool, tuple: SPANS}


_KV_FIELDS: dict[str, Any] = {
    name: (TYPES[setting.kind] | None, Field(default=None, description=f"{setting.help}."))
    for name, setting in PER_REQUEST.items()
}
KVFields: type[BaseModel] = create_model("KVFields", __config__=ConfigDict(extra="allow", strict=True), **_KV_FIELDS)

Prompts = list[str] | list[list[int]]
SentMessage = dict[str, Any]  # {"role": ..., "content": ...}, and keys that the chat template uses

PROMPT = TypeAdapter(str | list[str] | list[int] | list[list[int]]).json_schema()


def as_prompts(value: Any) -> Prompts:
    """Convert a prompt in any of OpenAI's forms (string, strings, ids, lists of ids) to a list of prompts."""
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
            empty: list[list[int]] = [[]]
            return empty
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
    """schema: for type json_object, as some other servers support it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None
    document: dict[str, Any] | bool | None = Field(default=None, alias="schema")


PRIORITIES = 100  # the lowest and the highest are this far from 0
LONGEST_TIMEOUT = 86_400.0  # seconds
Priority = Annotated[int, Field(ge=-PRIORITIES, le=PRIORITIES), BeforeValidator(as_integer)]
Timeout = Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)]
Count = Annotated[int, Field(ge=1, le=128), BeforeValidator(as_integer)]
TopLogprobs = Annotated[int, Field(ge=0, le=SamplingParams.MAX_LOGPROBS), BeforeValidator(as_integer)]


class GenerationBody(KVFields):  # type: ignore[misc, valid-type]  # created at import
    """Fields of all endpoints that generate, including the cache's.

    prompt_field, format_field: this endpoint's names for the prompt and the response format.
    """

    prompt_field: ClassVar[str]
    format_field: ClassVar[str] = "response_format"

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[Annotated[int, Field(strict=False)], float], Field(max_length=1024)] | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Int64], Field(max_length=1024)] | None = None
    min_tokens: Int64 | None = None
    ignore_eos: bool | None = None
    kv_trace: bool | None = Field(
        default=None, description="Remember which prompt tokens this request keeps, for /ringkv/kept/ID."
    )
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None
    priority: Priority | None = None
    timeout: Timeout | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def choices(self) -> int:
        """Number of answers that are returned per prompt."""
        return 1

    @property
    def answers(self) -> int:
        """Number of answers that are generated per prompt."""
        return self.choices

    @property
    def logprob_count(self) -> int | None:
        """Number of top tokens to report with each token; None reports no log-probabilities."""
        return None

    @property
    def format(self) -> ResponseFormat | None:
        """Requested format of the answer's text, if any."""
        raise NotImplementedError


class ChoicesBody(GenerationBody):
    """Fields of chats and completions, whose answers have choices."""

    stream_options: StreamOptions | None = None
    n: Count | None = None
    max_tokens: Int64 | None = None
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
    logprobs: TopLogprobs | None = None
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


def _as_sent(value: Any, check: Callable[[Any], Tool]) -> Any:
    check(value)
    return value


SentTool = Annotated[Tool, WrapValidator(_as_sent)]
"""A tool that is checked, and reaches the chat template as it was sent: {"type": ..., "function": {"name": ...}}."""


class Named(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: Named


class AllowedToolsOptions(BaseModel):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(BaseModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsOptions


ToolChoice = Annotated[NamedTool | AllowedTools, Field(discriminator="type")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


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

    messages: Annotated[list[SentMessage], Field(min_length=1)]
    chat_template_kwargs: dict[str, Any] | None = None
    parse_special_tokens: bool | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[SentTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None

    @property
    def logprob_count(self) -> int | None:
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise InvalidRequest(f"top_logprobs is {self.top_logprobs}; it needs logprobs to be true", "top_logprobs")
        return None
