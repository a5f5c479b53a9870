"""LLM: a model in this process, from prompts to text.

llm = LLM("smollm2", kv_budget=1024)
llm.generate("The capital of France is").text
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import wraps
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints, overload

import msgspec
from rich.progress import Progress as ProgressBar

from ringkv.base.checks import refusal
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Limits
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice, protect_system_message
from ringkv.base.progress import Progress
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.device_memory import free_bytes
from ringkv.llm.open_answers import OnPrefill, OpenAnswer, OpenAnswers
from ringkv.llm.result import Result, Stream
from ringkv.llm.show_progress import show_progress
from ringkv.machine.interrupts import uninterrupted
from ringkv.models.config import load_config
from ringkv.plan.check_options import check_options
from ringkv.plan.kv_settings import PER_REQUEST
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.plan.units import show_bytes
from ringkv.residency.catalogue import with_usual_weights
from ringkv.residency.locate import locate, located_drafts
from ringkv.scheduler.loop import Loop
from ringkv.text.answers.answer_stream import AnswerStream
from ringkv.text.chat_template import ChatMessage, ChatTemplate
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer
from ringkv.weights.read_ahead import read_ahead

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
FIELDS = frozenset(field.name for field in fields(SamplingParams))


def settings_hint(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method with a TypeError that shows the correct call if a setting is given as an argument."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        name = method.__name__
        given = ", ".join(f"{field}={value!r}" for field, value in kwargs.items() if field in FIELDS)
        if given:
            raise TypeError(f"{name}() takes sampling parameters as one argument: {name}(..., SamplingParams({given}))")
        if of_cache := [setting for setting in kwargs if setting in PER_REQUEST]:
            raise TypeError(f"{name}() takes {of_cache[0]} as a part of kv: {name}(..., kv=KVChoice(budget=512))")
        return method(*args, **kwargs)

    return call


TextOrTokens = str | Sequence[int]

SLOTS = 8  # default of `slots`
_TYPES = get_type_hints(Options)


class LLM:
    """A model, its engine and its tokenizer.

    model: a catalogue name (`ringkv models`), a directory in Hugging Face layout, a .gguf file, or a hub id.
    choices: the fields of `plan.options.Options`: kv_policy, kv_budget, kv_compression, slots, prompt_tokens, dtype,
    weights, graphs, threads and so on. Defaults depend on this machine.
    on_progress: called with the progress of downloads, loading and compilation. By default progress is shown on
    stderr; `base.progress.silent` shows nothing.
    Several answers may be open at a time, such as a `generate` inside a `stream`, and in several threads.
    Raises UnknownModel, BadWeights, UnsupportedModel, DoesNotFit, and InvalidRequest for an invalid choice.
    """

    def __init__(self, model: str | Path = "smollm2", *, on_progress: Progress | None = None, **choices: Any) -> None:
        options = with_usual_weights(str(model), _options(choices))
        check_options(options)
        self.model = str(model)
        with nullcontext(on_progress) if on_progress else show_progress() as report:
            with_drafts = located_drafts(options)
            folder, options = locate(str(model), report), with_drafts(report)
            self.config: EngineConfig = resolve(
                folder, load_config(folder), options, available_bytes(), free_bytes(options.device)
            )
            self.tokenizer = Tokenizer.from_directory(folder)
            read_ahead(folder)
            report(0, 0, "loading torch")
            with uninterrupted():
                from ringkv.ranks.build import build  # after every check that does not need torch

            self._engine = build(self.config, report)
        self._loop = Loop(self._engine, guide=Guides(lambda: self.tokenizer, self.limits.vocab))
        self._answers = OpenAnswers(self._loop)
        self._ids = count()

    def __repr__(self) -> str:
        limits, policy = self.limits, self.config.kv.policy
        return (
            f"<LLM {self.model}: {limits.slots} slots of {limits.capacity:,} entries, policy {policy}, "
            f"prompts of up to {limits.longest_prompt:,} tokens, {show_bytes(limits.held_bytes)} of cache>"
        )

    @property
    def limits(self) -> Limits:
        return self._engine.limits

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str too; the first overload matches
        self, prompts: str, sampling: SamplingParams | None = None, *, kv: KVChoice | None = None, progress: bool = True
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompts: Sequence[TextOrTokens],
        sampling: SamplingParams | None = None,
        *,
        kv: KVChoice | None = None,
        progress: bool = True,
    ) -> list[Result]: ...

    @settings_hint
    def generate(
        self,
        prompts: str | Sequence[TextOrTokens],
        sampling: SamplingParams | None = None,
        *,
        kv: KVChoice | None = None,
        progress: bool = True,
    ) -> Result | list[Result]:
        """Complete one text, or a batch of prompts; a prompt in a list is a text or token ids.

        Several prompts show a progress bar. If one prompt fails, its error is raised and all others are cancelled.
        """
        if isinstance(prompts, str):
            return self.generate([prompts], sampling, kv=kv)[0]
        if not isinstance(prompts, Iterable):
            raise InvalidRequest(f"prompts is {prompts!r}; give a text, or a list of texts or token ids", "prompts")
        answers = [self._answer(self._encode(prompt), sampling, kv) for prompt in prompts]
        with ProgressBar(disable=not (progress and len(answers) > 1)) as bar:
            task = bar.add_task("generating", total=len(answers))
            for piece in self._answers.serve(answers):
                bar.advance(task, piece.result is not None)
        return [answer.result for answer in answers if answer.result is not None]

    @settings_hint
    def chat(
        self, messages: Sequence[ChatMessage], sampling: SamplingParams | None = None, *, kv: KVChoice | None = None
    ) -> Result:
        """Answer a conversation, [{"role": ..., "content": ...}], using the model's chat template.

        The system message is protected from eviction if the budget allows, unless `kv` sets `protect`.
        """
        tokens, kv = self._chat(messages, kv)
        return self.generate([tokens], sampling, kv=kv)[0]

    @settings_hint
    def stream(
        self,
        prompt: TextOrTokens,
        sampling: SamplingParams | None = None,
        *,
        kv: KVChoice | None = None,
        on_prefill: OnPrefill | None = None,
    ) -> Stream:
        """Stream the answer to one prompt, one piece per token; the last piece has the result. Closing it cancels."""
        return self._answers.serve([self._answer(self._encode(prompt), sampling, kv)], on_prefill)

    @settings_hint
    def stream_chat(
        self,
        messages: Sequence[ChatMessage],
        sampling: SamplingParams | None = None,
        *,
        kv: KVChoice | None = None,
        on_prefill: OnPrefill | None = None,
    ) -> Stream:
        tokens, kv = self._chat(messages, kv)
        return self.stream(tokens, sampling, kv=kv, on_prefill=on_prefill)

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return a conversation's token ids. Raises InvalidRequest if the model has no chat template."""
        prompt = ChatTemplate.from_directory(self.config.model_dir).prompt(messages, self.tokenizer)
        self.tokenizer.check_length(prompt.text, self.limits.longest_prompt, "messages")
        return self.tokenizer.encode_prompt(prompt)

    def _chat(self, messages: Sequence[ChatMessage], kv: KVChoice | None) -> tuple[list[int], KVChoice]:
        """Return a conversation's token ids, and a choice that protects its system message."""
        kv = _checked(kv, KVChoice, "kv", "KVChoice(budget=64)") or self._engine.default_kv
        tokens = self.encode_chat(messages)  # first, because it rejects a prompt that is too long
        system = ChatTemplate.from_directory(self.config.model_dir).system_tokens(messages, self.tokenizer)
        return tokens, protect_system_message(kv, system, self.limits.kept_of(len(tokens)))

    def _encode(self, prompt: object) -> list[int]:
        if isinstance(prompt, str):
            self.tokenizer.check_length(prompt, self.limits.longest_prompt)
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt):
            return list(prompt)
        raise InvalidRequest("a prompt is a text or a list of token ids; give several as a list of those", "prompt")

    def _answer(self, tokens: list[int], sampling: SamplingParams | None, kv: KVChoice | None) -> OpenAnswer:
        sampling = _checked(sampling, SamplingParams, "sampling", "SamplingParams(max_tokens=64)") or SamplingParams()
        kv = _checked(kv, KVChoice, "kv", "KVChoice(budget=64)")
        request = Request(f"llm-{next(self._ids)}", tuple(tokens), sampling, kv, self.tokenizer.eos_ids)
        return OpenAnswer(
            request, AnswerStream(self.tokenizer.detokenizer(continues=True), sampling.stop, sampling.min_tokens)
        )


def _options(choices: Mapping[str, Any]) -> Options:
    known = [field.name for field in fields(Options)]
    if unknown := [name for name in choices if name not in known]:
        text = f"LLM does not take {', '.join(unknown)}; it takes {', '.join(known)}"
        raise InvalidRequest(text, unknown[0])
    if (select := choices.get("kv_select")) is not None and not isinstance(select, str):
        text = f"kv_select of an LLM is a name; give a selector with the request, kv=KVChoice(select={select!r})"
        raise InvalidRequest(text, "kv_select")
    plain = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in choices.items()}
    for name, value in plain.items():
        _check_type(name, value, _TYPES[name])
    return replace(Options(slots=SLOTS), **plain)


def _check_type(name: str, value: object, kind: object) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if expected := re.match("Expected `(.*?)`", str(error)):  # else a name that is checked with the others
            kinds = expected[1].removesuffix(" | null").replace(" | ", " or ")
            raise InvalidRequest(refusal(name, value, f"of type {kinds}"), name) from None


def _checked(given: object, kind: type[T], name: str, example: str) -> T | None:
    if given is None or isinstance(given, kind):
        return given
    raise InvalidRequest(f"{name} is of type {type(given).__name__}; give {example}", name)
