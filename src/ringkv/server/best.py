"""best_of: more answers than are asked for, of which the likeliest are given."""

from collections.abc import Sequence
from dataclasses import replace

from ringkv.server.generation import Piece
from ringkv.server.schemas import GenerationBody


def best(choices: Sequence[Sequence[Piece]], body: GenerationBody) -> list[Sequence[Piece]]:
    """The `n` of each prompt's `best_of` answers whose tokens have the highest mean log-probability, best first."""
    each = body.answers
    if each == body.choices:
        return list(choices)
    groups = (choices[first : first + each] for first in range(0, len(choices), each))
    kept = [one for group in groups for one in sorted(group, key=_likelihood, reverse=True)[: body.choices]]
    return kept if body.logprob_count is not None else [[replace(p, logprob=None) for p in one] for one in kept]


def _likelihood(pieces: Sequence[Piece]) -> float:
    values = [piece.logprob.logprob for piece in pieces if piece.logprob is not None]
    return sum(values) / max(1, len(values))
