"""Converts a validated body to the engine's requests."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ringkv.base.engine import Limits
from ringkv.base.errors import BadToken, EmptyPrompt, InvalidRequest, PromptTooLong, Unsupported
from ringkv.base.kv import KVChoice, protect_system_message
from ringkv.base.log_lines import answer_id as own_id
from ringkv.base.log_lines import engine_id
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.plan.kv_settings import PER_REQUEST, changed
from ringkv.server.run.schemas import GenerationBody
from ringkv.server.run.serving import Serving
from ringkv.text.generation_config import Sampling

_NUMBERED = re.compile(r"-\d+-\d+$")
_SURROGATE = re.compile("[\ud800-\udfff]")
SEEDS = 2**63
MAX_ANSWERS = 1024  # of one HTTP request, over all its prompts
MAX_LOGPROBS = 1 << 20  # of one HTTP request, with those of top tokens
MAX_STOPS, MAX_STOP_LENGTH = 64, 1024  # bounds the search in the text after each token

# Fields with the same name in the body and in SamplingParams.
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
)
OPENAI_DEFAULTS: Sampling = {"temperature": 1.0}


def build_requests(
    serving: Serving,
    answer_id: str,
    body: GenerationBody,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    system_tokens: int = 0,
    grammar: str = "",
    prompt_logprobs: int | None = None,
) -> list[list[Request]]:
    """Return one group of requests per prompt, in the order of the answer's choices.

    The first `system_tokens` tokens, a chat's system message, are protected unless the body sets `kv_protect`.
    """
    limits = serving.engine.limits
    check_logprobs(body, prompts, min(max_tokens, limits.context), prompt_logprobs)
    if body.kv_trace and serving.engine.stats().prefill_workers is not None:  # the other process remembers nothing
        raise Unsupported("kv_trace is not implemented for --role decode; leave it out, or use --role both", "kv_trace")
    for prompt in prompts:
        check_prompt(prompt, limits, body.prompt_field)
    for field in ("logit_bias", "stop_token_ids"):
        check_tokens(getattr(body, field) or (), limits.vocab, field)
    kv = kv_choice(body, serving.engine.default_kv, limits.capacity)
    if system_tokens and body.kv_protect is None:
        kept = limits.kept_of(max(map(len, prompts)))
        kv = protect_system_message(kv or serving.engine.default_kv, system_tokens, kept)
    samplings = [
        replace(
            sampling_params(body, max_tokens, number, serving.sampling),
            grammar=grammar,
            prompt_logprobs=prompt_logprobs,
        )
        for number in range(body.answers)
    ]
    eos, salt = serving.tokenizer.eos_ids, body.cache_salt or ""
    timeouts = [timeout for timeout in (body.timeout, serving.timeout) if timeout is not None]
    return [
        [
            Request(
                engine_id(f"{answer_id}-{index}-{number}"),
                prompt,
                sampling,
                kv,
                eos,
                salt=salt,
                priority=body.priority or 0,
                timeout=min(timeouts, default=None),
                trace=bool(body.kv_trace) and number == 0,
            )
            for number, sampling in enumerate(samplings)
        ]
        for index, prompt in enumerate(map(tuple, prompts))
    ]


def answer_of_request(request_id: str) -> str:
    """Return the id of the answer that a request of the engine belongs to, from the request's id."""
    return _NUMBERED.sub("", own_id(request_id))


def first_request(answer: str) -> str:
    """Return the name of the engine's first request of an answer, without the id of the HTTP request."""
    return answer if _NUMBERED.search(answer) else f"{answer}-0-0"


def sampling_defaults(body: GenerationBody, recommended: Sampling) -> Sampling:
    """Return the model's recommendation for a request that sets none of its fields or `temperature`, else OpenAI's.

    The fields belong together: a penalty that suits a temperature would change greedy answers.
    """
    sets = any(getattr(body, name) is not None for name in ("temperature", *recommended))
    return OPENAI_DEFAULTS if sets else {**OPENAI_DEFAULTS, **recommended}


def sampling_params(
    body: GenerationBody, max_tokens: int, number: int = 0, recommended: Sampling = MappingProxyType({})
) -> SamplingParams:
    """Return the sampling parameters of answer `number` of a prompt; a seed in the body increases by 1 per answer.

    `best_of` always requests log-probabilities, to rank the answers.
    """
    logprobs = body.logprob_count
    if body.answers > body.choices:
        logprobs = logprobs or 0
    sent: dict[str, Any] = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    return SamplingParams(
        **{**sampling_defaults(body, recommended), **sent},
        max_tokens=max_tokens,
        logprobs=logprobs,
        seed=body.seed if body.seed is None or number == 0 else (body.seed + number) % SEEDS,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
    )


def check_count(prompts: int, body: GenerationBody) -> None:
    if (count := prompts * body.answers) > MAX_ANSWERS:
        raise InvalidRequest(
            f"{prompts:,} prompts with {body.answers} answers each are {count:,} answers; one request may have "
            f"{MAX_ANSWERS:,}, so send several requests",
            body.prompt_field,
        )


def check_logprobs(
    body: GenerationBody, prompts: Sequence[Sequence[int]], max_tokens: int, prompt_logprobs: int | None
) -> None:
    """Raise InvalidRequest for answers with more than `MAX_LOGPROBS` log-probabilities, which no memory is planned for.

    Each takes up to 190 bytes of this process until the answer is sent.
    """
    of_answer, of_prompt = (0 if top is None else 1 + top for top in (body.logprob_count, prompt_logprobs))
    count = body.answers * sum(of_prompt * len(prompt) + of_answer * max_tokens for prompt in prompts)
    if count > MAX_LOGPROBS:
        raise InvalidRequest(
            f"the answers may have {count:,} log-probabilities, and one request may have {MAX_LOGPROBS:,}; ask for "
            "fewer answers, tokens or top tokens",
            "logprobs",
        )


def check_prompt(tokens: Sequence[int], limits: Limits, field: str = "prompt") -> None:
    """Raise the engine's errors for a bad prompt, before it is sent to the engine."""
    longest = limits.longest_prompt
    if not tokens:
        raise EmptyPrompt("the prompt is empty; send at least one token", field)
    if len(tokens) > longest:
        raise PromptTooLong(f"prompt has {len(tokens):,} tokens, this server takes {longest:,}; shorten it", field)
    check_tokens(tokens, limits.vocab, field)


def check_tokens(tokens: Iterable[int], vocab: int, field: str) -> None:
    bad = next((token for token in tokens if not 0 <= token < vocab), None)
    if bad is not None:
        raise BadToken(f"{field} contains token id {bad}; this model's ids are 0 to {vocab - 1}", field)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    longest = max(map(len, stops), default=0)
    for is_wrong, problem in (
        (len(stops) > MAX_STOPS, f"{len(stops):,} strings; send at most {MAX_STOPS}"),
        ("" in stops, "an empty string; leave it out"),
        (longest > MAX_STOP_LENGTH, f"a string of over {MAX_STOP_LENGTH:,} characters; shorten it"),
        (any(map(_SURROGATE.search, stops)), "half of a surrogate pair, which is not valid text; leave it out"),
    ):
        if is_wrong:
            raise InvalidRequest(f"stop contains {problem}", "stop")
    return stops


def kv_choice(body: GenerationBody, default: KVChoice, capacity: int) -> KVChoice | None:
    """Return the requested cache, with `default` for unset fields; None if no field is set.

    The full cache gets all of the slot's `capacity` (in entries) unless the request sets a budget.
    """
    given = {name: value for name in PER_REQUEST if (value := getattr(body, name)) is not None}
    if not given:
        return None
    for name, value in given.items():
        if isinstance(value, int | float) and value > capacity:  # it is useless, and wide pooling costs time and memory
            raise InvalidRequest(
                f"{name} is {value}; a slot has {capacity} entries; send at most that, or start with a larger budget",
                name,
            )
    base = replace(default, budget=None) if body.kv_policy == "full" else default
    return changed(base, given)
