"""SamplingParams: how one request's tokens are sampled."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum

from ringkv.base.checks import check


class SamplerTier(IntEnum):
    """What a sampling graph supports. Each tier includes those below it. A batch uses the highest that it needs."""

    GREEDY = 0  # the top token: no random numbers
    TEMPERATURE = 1
    GRAMMAR = 2  # a mask of the tokens that a grammar allows
    ADJUSTED = 3  # penalties, bias, minimum length, logprobs
    TRUNCATED = 4  # top_k, top_p or min_p: masked sums over the vocabulary


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are sampled, and when to stop. Names and meanings follow OpenAI's API and vLLM's extensions.

    temperature: below GREEDY_BELOW is greedy; the same `seed` gives the same tokens whatever else is in the batch.
    top_k: 0 keeps all; top_p: 1 keeps all; min_p: share of the top token's probability.
    repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output.
    presence_penalty, frequency_penalty: subtracted once, or per occurrence, for tokens in the output.
    logit_bias: token id -> amount added to its logit.
    min_tokens: before so many tokens, end-of-sequence and `stop_token_ids` are masked and `stop` is not matched.
    logprobs: how many top tokens to report with each token; None reports nothing, 0 the sampled one only.
    prompt_logprobs: the same for each prompt token except the first, whichever tokens the cache keeps.
    grammar: what the text must match, as `text.grammar` writes it; "" allows any text. The grammar decides where the
    text ends, so it excludes ignore_eos and min_tokens.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""

    MAX_LOGPROBS = 20
    GREEDY_BELOW = 1e-5  # as in vLLM: logits divided by less may overflow float32
    MAX_TEMPERATURE = 1e4  # logits differ by some tens, so at this temperature all tokens are equally probable
    REPETITION = (0.01, 100.0)  # bounds; a logit of some tens times more would dominate all others, and may overflow

    def __post_init__(self) -> None:
        numbers = ((each.name, getattr(self, each.name), each.type) for each in fields(self) if each.type in _NUMBERS)
        check((name, value, _is_number(value, kind), f"a {_NUMBERS[kind]}") for name, value, kind in numbers)
        low, high = self.REPETITION
        rules = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature, "0 or more"),
            ("temperature", self.temperature <= self.MAX_TEMPERATURE, f"at most {self.MAX_TEMPERATURE:,.0f}"),
            ("top_k", self.top_k >= -1, "0 or -1 (all), or a count"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", low <= self.repetition_penalty <= high, f"from {low:g} to {high:g}"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "from -2 to 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "from -2 to 2"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, f"from 0 to max_tokens ({self.max_tokens})"),
            ("logprobs", _is_count(self.logprobs), f"0 to {self.MAX_LOGPROBS}"),
            ("prompt_logprobs", _is_count(self.prompt_logprobs), f"0 to {self.MAX_LOGPROBS}"),
            ("min_tokens", not (self.grammar and self.min_tokens), "0 if a grammar decides where the text ends"),
            ("ignore_eos", not (self.grammar and self.ignore_eos), "false if a grammar decides where the text ends"),
            ("logit_bias", all(-100 <= b <= 100 for b in self.logit_bias.values()), "from -100 to 100 for each token"),
        )
        check((name, getattr(self, name), is_valid, rule) for name, is_valid, rule in rules)

    @property
    def tier(self) -> SamplerTier:
        """The lowest tier that supports this. Greedy sampling ignores truncation, which never removes the top token."""
        if not self.is_greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0):
            return SamplerTier.TRUNCATED
        if self.adjusts or self.logprobs is not None:
            return SamplerTier.ADJUSTED
        if self.grammar:
            return SamplerTier.GRAMMAR
        return SamplerTier.GREEDY if self.is_greedy else SamplerTier.TEMPERATURE

    @property
    def adjusts(self) -> bool:
        """Whether bias, penalties or min_tokens change logits, by the tokens before them."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return bool(penalties or self.logit_bias or self.min_tokens)

    @property
    def takes_drafts(self) -> bool:
        """Whether a token depends on its logits and its position alone, so that several are sampled in one step."""
        return not (self.adjusts or self.grammar)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < self.GREEDY_BELOW


_NUMBERS: Mapping[object, str] = {int: "whole number", int | None: "whole number", float: "number"}


def _is_number(value: object, kind: object) -> bool:
    if value is None:
        return kind == int | None
    return isinstance(value, int | float) and (kind is float or value % 1 == 0)


def _is_count(logprobs: int | None) -> bool:
    return logprobs is None or 0 <= logprobs <= SamplingParams.MAX_LOGPROBS
