"""Report: the memory of one model, full cache against compressed, as rows for a table or for JSON."""

from dataclasses import dataclass
from pathlib import Path

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.errors import InvalidRequest
from ringkv.models.config import load_config
from ringkv.plan.footprint import Footprint, read_bytes, sampler_bytes, token_bytes, weight_bytes
from ringkv.plan.shapes import Shape, known


@dataclass(frozen=True)
class Question:
    """What to plan for. Bytes and counts are of one rank out of `tensor_parallel`; memory and bandwidth too."""

    tokens: int | None = None  # longest prompt plus output; None is the model's context
    prompt_tokens: int | None = None  # longest prompt; None is `tokens`
    budget: int = 2048  # entries of a compressed slot
    lanes: int = 1  # prompts staged at once
    tensor_parallel: int = 1
    dtype: str = "bfloat16"  # of keys and values
    kv_format: PlaneFormat = "plain"  # of keys and values in slots
    weights_dtype: str | None = None  # or int8, int4; None is the dtype that the weights are published in
    memory: int | None = None  # bytes; None leaves the slots that fit open
    bandwidth: int | None = None  # bytes a second; None leaves times open
    reserve: int = 0  # bytes kept free for everything that is not weights or cache


@dataclass(frozen=True)
class Row:
    """One way to hold a request's tokens; bytes are of one rank."""

    cache: str  # "full" or "compressed"
    entries: int  # per slot
    slot_bytes: int
    slots: int | None  # that fit, sampler included, beside weights, staging and reserve; None when no memory was given
    total_bytes: int  # with those slots, else with one
    step_bytes: int  # that a decode step of those slots, else of one, reads at least; more slots wake more experts
    step_seconds: float | None  # at the bandwidth given: no implementation is faster
    tokens_per_second: float | None  # of all slots together, at that floor


@dataclass(frozen=True)
class Report:
    model: str
    parameters: int
    dtype: str
    weights_dtype: str
    tensor_parallel: int
    tokens: int
    prompt_tokens: int
    lanes: int
    memory: int | None
    token_bytes: int
    weight_bytes: int
    staging_bytes: int
    sampler_bytes: int  # per slot
    rows: tuple[Row, ...]


def find_shape(model: str) -> Shape:
    """The shape of a directory in Hugging Face layout, else of a catalogue name. Raises `UnknownModel`."""
    directory = Path(model).expanduser()
    if (directory / "config.json").is_file():
        return Shape.of(load_config(directory), directory.resolve().name)
    return known(model)


def report(shape: Shape, question: Question) -> Report:
    """Raises `InvalidRequest` when the question cannot be asked of this shape."""
    tokens = shape.context if question.tokens is None else question.tokens
    prompt = tokens if question.prompt_tokens is None else question.prompt_tokens
    _check(shape, question, tokens, prompt)
    weights_dtype = question.weights_dtype or shape.native
    token = token_bytes(shape, question.dtype, question.tensor_parallel)
    weights = weight_bytes(shape, weights_dtype, question.tensor_parallel)
    entry = token_bytes(shape, question.dtype, question.tensor_parallel, question.kv_format)
    staging = question.lanes * prompt * token
    sampler = sampler_bytes(shape.vocab)

    def row(cache: str, entries: int) -> Row:
        read = read_bytes(shape, weights_dtype, question.tensor_parallel)
        need = Footprint(entries * entry, weights, staging, question.reserve, sampler=sampler)
        return _row(cache, entries, need, read, question)

    return Report(
        model=shape.name,
        parameters=shape.parameters,
        dtype=question.dtype,
        weights_dtype=weights_dtype,
        tensor_parallel=question.tensor_parallel,
        tokens=tokens,
        prompt_tokens=prompt,
        lanes=question.lanes,
        memory=question.memory,
        token_bytes=token,
        weight_bytes=weights,
        staging_bytes=staging,
        sampler_bytes=sampler,
        rows=(row("full", tokens), row("compressed", min(question.budget, tokens))),
    )


def _row(cache: str, entries: int, need: Footprint, weights_read: int, question: Question) -> Row:
    slots = None if question.memory is None else need.slots_in(question.memory)
    shown = 1 if slots is None else slots
    step = weights_read + shown * need.slot
    seconds = step / question.bandwidth if question.bandwidth else None
    return Row(
        cache=cache,
        entries=entries,
        slot_bytes=need.slot,
        slots=slots,
        total_bytes=need.total(shown),
        step_bytes=step,
        step_seconds=seconds,
        tokens_per_second=shown / seconds if seconds else None,
    )


def _check(shape: Shape, question: Question, tokens: int, prompt: int) -> None:
    for name, value, top in (
        ("tokens", tokens, shape.context),
        ("prompt_tokens", prompt, tokens),
        ("budget", question.budget, None),
        ("lanes", question.lanes, None),
        ("tensor_parallel", question.tensor_parallel, None),
        ("memory", question.memory, None),
        ("bandwidth", question.bandwidth, None),
    ):
        if value is None:
            continue
        if value < 1:
            raise InvalidRequest(f"{name} is {value}; it must be at least 1", name)
        if top is not None and value > top:
            raise InvalidRequest(f"{name} is {value:,}; {shape.name} takes at most {top:,} here", name)
