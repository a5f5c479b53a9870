"""sentences: verdicts in words, for the report and the terminal."""

from collections.abc import Callable
from math import exp, isfinite
from typing import NamedTuple

from ringkv.evaluation.bootstrap import Interval
from ringkv.evaluation.cells import budget_of, policy_of
from ringkv.evaluation.outcome import WORDS, prompts_needed
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.evaluation.verdict import Comparison, Verdict, Worst

PLACES = {"inside": "", "after": ", question after compression", "next": ", question in the next turn"}
GROUPS = {"own": "your prompts", "ruler": "RULER", "longbench": "LongBench", "text": "WikiText-2"}
UNKNOWN = "nothing can be said, because the full cache's score is 0"


def headline(comparison: Comparison) -> str:
    """Return the most useful verdict as a sentence."""
    verdict = comparison.most_useful
    where = f" on {tasks(verdict)}" if comparison.is_loss else f" on {tasks(verdict)}{PLACES[comparison.place]}"
    text = line(verdict, _phrase(verdict).rest + where)
    return f"At {_size(budget_of(verdict.cell))}, {policy_of(verdict.cell)} {text}."


def of_full(comparison: Comparison) -> str:
    """Name the full cache's own score."""
    over = f"over {comparison.prompts:,} prompts" if comparison.prompts > 1 else "on one prompt"
    if comparison.is_loss:
        return f"The full cache's perplexity is {exp(-comparison.full):.2f} {over}."
    return f"The full cache scores {100 * comparison.full:.1f}% {over}."


def tasks(verdict: Verdict) -> str:
    """Name what the prompts are of: a group of tasks, or their number."""
    groups = {TASKS[task].group for task in verdict.tasks}
    if len(groups) == 1 and (name := GROUPS.get(*groups)):
        return name
    return min(verdict.tasks) if len(verdict.tasks) == 1 else f"{len(verdict.tasks)} tasks"


def line(verdict: Verdict, rest: str = "") -> str:
    """Return what a cell keeps, without its name. rest: of what."""
    if verdict.share is None:
        return UNKNOWN
    phrase = f"{_phrase(verdict).begin(verdict.share)}{rest}"
    if verdict.outcome == "few":
        needed = prompts_needed(verdict.prompts, verdict.share)
        return f"has {WORDS['few']} to tell ({verdict.prompts:,}; about {needed:,} would do); so far it {phrase}"
    return f"{phrase}: {WORDS['noise']}" if verdict.outcome == "noise" else phrase + _worst(verdict.worst)


class _Phrase(NamedTuple):
    """How a share is said. rest: follows in a whole sentence."""

    begin: Callable[[Interval], str]
    rest: str


def _phrase(verdict: Verdict) -> _Phrase:
    """Return the phrase of the tasks' kind; of tasks of several kinds, that of scores."""
    kinds = {(TASKS[task].is_loss, TASKS[task].is_relative) for task in verdict.tasks}
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


def _worst(worst: Worst | None) -> str:
    if worst is None:
        return ""
    return f"; {worst.name} {'suffer' if worst.is_plural else 'suffers'} most ({worst.share:.0f}%)"


def _size(budget: str) -> str:
    return f"{int(budget):,} entries" if budget.isdecimal() else budget
