"""From a validated body to what the engine takes."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ringkv.base.engine import Limits
from ringkv.base.errors import BadToken, EmptyPrompt, InvalidRequest, PromptTooLong
from ringkv.base.kv import protect_system_message
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.server.kv_choice import kv_choice
from ringkv.server.schemas import GenerationBody
from ringkv.server.serving import Serving

SEEDS = 2**63
MOST_ANSWERS = 1024  # of one request, all its prompts together
MOST_STOPS, LONGEST_STOP = 64, 1024  # they are looked for in the text after each token

# Named alike in the body and in SamplingParams.
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
OPENAI_DEFAULTS = {"temperature": 1.0}


def build_requests(
    serving: Serving,
    answer_id: str,
    body: GenerationBody,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    system: int = 0,
    grammar: str = "",
    prompt_logprobs: int | None = None,
) -> list[list[Request]]:
    """For each prompt the requests that answer it, in the order of the answer's choices.

    The first `system` tokens, a chat's system message, are protected unless the body says what is.
    """
    limits = serving.engine.limits
    for prompt in prompts:
        check_prompt(prompt, limits, body.prompt_field)
    for field in ("logit_bias", "stop_token_ids"):
        check_tokens(getattr(body, field) or (), limits.vocab, field)
    kv = kv_choice(body, serving.engine.default_kv, limits.capacity)
    if system and body.kv_protect is None:
        kv = protect_system_message(kv or serving.engine.default_kv, system, limits.capacity)
    samplings = [
        replace(sampling_params(body, max_tokens, draw), grammar=grammar, prompt_logprobs=prompt_logprobs)
        for draw in range(body.answers)
    ]
    eos, salt = serving.tokenizer.eos_ids, body.cache_salt or ""
    return [
        [
            Request(f"{answer_id}-{index}-{draw}", prompt, sampling, kv, eos, salt=salt)
            for draw, sampling in enumerate(samplings)
        ]
        for index, prompt in enumerate(map(tuple, prompts))
    ]


def sampling_params(body: GenerationBody, max_tokens: int, draw: int = 0) -> SamplingParams:
    """How to sample the `draw`-th of a prompt's answers: a given seed moves on by one from each to the next.

    Where the best are to be chosen, each token's log-probability is wanted in any case.
    """
    logprobs = body.logprob_count
    if body.answers > body.choices:
        logprobs = logprobs or 0
    sent: dict[str, Any] = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    return SamplingParams(
        **OPENAI_DEFAULTS | sent,
        max_tokens=max_tokens,
        logprobs=logprobs,
        seed=body.seed if body.seed is None or draw == 0 else (body.seed + draw) % SEEDS,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
    )


def check_count(prompts: int, body: GenerationBody) -> None:
    if (count := prompts * body.answers) > MOST_ANSWERS:
        raise InvalidRequest(
            f"{prompts:,} prompts with {body.answers} answers each are {count:,} answers; one request may ask for "
            f"{MOST_ANSWERS:,}, so send several",
            body.prompt_field,
        )


def check_prompt(tokens: Sequence[int], limits: Limits, field: str = "prompt") -> None:
    """Raise what the engine would, before anything crosses to it."""
    longest = limits.longest_prompt
    if not tokens:
        raise EmptyPrompt("the prompt is empty; send at least one token", field)
    if len(tokens) > longest:
        raise PromptTooLong(f"prompt has {len(tokens):,} tokens, this server takes {longest:,}; shorten it", field)
    check_tokens(tokens, limits.vocab, field)


def check_tokens(tokens: Iterable[int], vocab: int, field: str) -> None:
    bad = next((token for token in tokens if not 0 <= token < vocab), None)
    if bad is not None:
        raise BadToken(f"{field} holds token id {bad}; ids of this model are 0 to {vocab - 1}", field)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for wrong, remedy in (
        (len(stops) > MOST_STOPS, f"{len(stops):,} strings; at most {MOST_STOPS} are looked for"),
        ("" in stops, "an empty string; leave it out"),
        (any(len(one) > LONGEST_STOP for one in stops), f"a string of over {LONGEST_STOP:,} characters; shorten it"),
        (not all(map(_is_text, stops)), "half of a surrogate pair, which no text has; leave it out"),
    ):
        if wrong:
            raise InvalidRequest(f"stop holds {remedy}", "stop")
    return stops


def _is_text(text: str) -> bool:
    with suppress(UnicodeEncodeError):
        return bool(text.encode())
    return False
