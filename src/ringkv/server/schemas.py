"""What clients may send. Every field may be null; unknown fields are kept aside for `refusals` and then ignored."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

Prompts = list[str] | list[list[int]]
Turn = dict[str, Any]  # {"role": ..., "content": ...}; what else it may hold, the model's template decides

INT64 = 2**63 - 1


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


Whole = Annotated[int, Field(ge=-INT64, le=INT64)]  # what a message to the engine can hold


class GenerationBody(BaseModel):
    """The fields that completions and chat completions share."""

    model_config = ConfigDict(extra="allow")
    prompt_field: ClassVar[str]

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    best_of: Whole | None = None
    max_tokens: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: Whole | None = None
    ignore_eos: bool | None = None
    kv_policy: str | None = None
    kv_budget: Whole | None = None
    kv_sinks: Whole | None = None
    kv_recent: float | None = None
    kv_window: Whole | None = None
    kv_protect: list[tuple[Whole, Whole]] | None = None
    kv_turns: str | None = None
    cache_salt: str | None = None


class CompletionBody(GenerationBody):
    prompt_field = "prompt"

    prompt: Annotated[Prompts, PlainValidator(as_prompts)]
    logprobs: Whole | None = None
    add_special_tokens: bool | None = None


class ChatBody(GenerationBody):
    prompt_field = "messages"

    messages: Annotated[list[Turn], Field(min_length=1)]
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
