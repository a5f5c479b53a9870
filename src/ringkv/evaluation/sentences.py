"""sentences: verdicts in words, for the report and the terminal."""

from collections.abc import Callable
from math import exp, isfinite
from typing import NamedTuple

from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.cells import budget_of, policy_of
from ringkv.evaluation.outcome import WORDS, prompts_needed
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.evaluation.verdict import Comparison, Verdict

PLACES = {"inside": "", "after": ", question after compression", "next": ", question in the next turn"}
GROUPS = {"own": "your prompts", "ruler": "RULER", "longbench": "LongBench", "text": "WikiText-2"}
UNKNOWN = "nothing can be said, because the full cache's score is 0"


def headline(found: Comparison) -> str:
    """Return the most useful verdict as a sentence."""
    one = found.most_useful
    where = f" on {tasks(one)}" if found.is_loss else f" on {tasks(one)}{PLACES[found.place]}"
    return f"At {_size(budget_of(one.cell))}, {policy_of(one.cell)} {_text(one, _phrase(one).rest + where)}."


def line(one: Verdict) -> str:
    """Return a verdict in short, without the name of its cell."""
    return _text(one, "")


def of_full(found: Comparison) -> str:
    """Name the full cache's own score."""
    over = f"over {found.prompts:,} prompts" if found.prompts > 1 else "on one prompt"
    if found.is_loss:
        return f"The full cache's perplexity is {exp(-found.full):.2f} {over}."
    return f"The full cache scores {100 * found.full:.1f}% {over}."


def tasks(one: Verdict) -> str:
    """Name what the prompts are of: a group of tasks, or their number."""
    groups = {TASKS[task].group for task in one.tasks}
    if len(groups) == 1 and (name := GROUPS.get(*groups)):
        return name
    return min(one.tasks) if len(one.tasks) == 1 else f"{len(one.tasks)} tasks"


def _text(one: Verdict, rest: str) -> str:
    """Return what a cell keeps. rest: of what."""
    if one.share is None:
        return UNKNOWN
    phrase = f"{_phrase(one).begin(one.share)}{rest}"
    if one.outcome == "few":
        needed = prompts_needed(one.prompts, one.share)
        return f"has {WORDS['few']} to tell ({one.prompts:,}; about {needed:,} would do); so far it {phrase}"
    return f"{phrase}: {WORDS['noise']}" if one.outcome == "noise" else phrase + _worst(one)


class _Phrase(NamedTuple):
    """How a share is said. rest: follows in a whole sentence."""

    begin: Callable[[Interval], str]
    rest: str


def _phrase(one: Verdict) -> _Phrase:
    """Return the phrase of the tasks' kind; of tasks of several kinds, that of scores."""
    kinds = {(TASKS[task].is_loss, TASKS[task].is_relative) for task in one.tasks}
    return _PHRASES[min(kinds)]


def _changes(share: Interval) -> str:
    more = share.through(lambda value: 100 * (100 / value - 1))
    return f"{'raises' if more.mean > 0 else 'lowers'} the perplexity by {abs(more.mean):.1f}%{_ends(more, '+.1f')}"


_PHRASES = {  # by whether it is a perplexity, and whether the full cache's answers count as right
    (False, False): _Phrase(lambda share: f"keeps {_shown(share)}", " of the full cache's score"),
    (False, True): _Phrase(lambda share: f"agrees {_shown(share)}", " with the full cache's answers"),
    (True, False): _Phrase(_changes, ""),
}


def _shown(share: Interval) -> str:
    return f"{share.mean:.0f}%{_ends(share, '.0f')}"


def _ends(interval: Interval, form: str) -> str:
    return f" [{interval.low:{form}}, {interval.high:{form}}]" if isfinite(interval.low) else ""


def _worst(one: Verdict) -> str:
    if one.worst is None:
        return ""
    return f"; {one.worst.name} {'suffer' if one.worst.is_plural else 'suffers'} most ({one.worst.share:.0f}%)"


def _size(budget: str) -> str:
    return f"{int(budget):,} entries" if budget.isdecimal() else budget
