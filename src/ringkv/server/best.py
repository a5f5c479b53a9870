"""best_of: more answers are generated than requested, and those with the highest mean log-probability are returned."""

from collections.abc import Sequence
from dataclasses import replace

from ringkv.server.generation import TokenOutput
from ringkv.server.schemas import GenerationBody


def best(choices: Sequence[Sequence[TokenOutput]], body: GenerationBody) -> list[Sequence[TokenOutput]]:
    """Return the `n` of each prompt's `best_of` answers with the highest mean log-probability, best first."""
    per_prompt = body.answers
    if per_prompt == body.choices:
        return list(choices)
    groups = (choices[first : first + per_prompt] for first in range(0, len(choices), per_prompt))
    kept = [one for group in groups for one in sorted(group, key=_mean_logprob, reverse=True)[: body.choices]]
    return kept if body.logprob_count is not None else [[replace(o, logprob=None) for o in one] for one in kept]


def _mean_logprob(outputs: Sequence[TokenOutput]) -> float:
    values = [output.logprob.logprob for output in outputs if output.logprob is not None]
    return sum(values) / max(1, len(values))
