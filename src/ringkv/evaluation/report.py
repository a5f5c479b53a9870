"""report: what a study found, as the sentences and tables that `ringkv eval` prints and writes to DIR/report.md."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from ringkv.evaluation import costs, journal, sentences
from ringkv.evaluation.cells import FULL
from ringkv.evaluation.costs import Cost
from ringkv.evaluation.journal import Record
from ringkv.evaluation.offers import Advice, Offer
from ringkv.evaluation.outcome import LEGEND, WORDS, outcome
from ringkv.evaluation.summary import CellScore, group_scores, task_scores
from ringkv.evaluation.tasks.catalogue import GROUPS
from ringkv.evaluation.verdict import Comparison, compare
from ringkv.plan.units import show_bytes

NAME = "report.md"
SHOWN, EXCERPT = 10, 300  # of a user's own prompts, those whose answers are shown; characters of each answer
DIFFERENCE = "from full"
HEAD = ("task", "cache", "prompts", "score", DIFFERENCE, "held", "answer", "wraps")
COST_HEAD = ("cache", "held", "a step reads", "recalled", "prefill", "step")
OFFER_HEAD = ("cache", "prompts", "score", "points lost", "slot", "a step reads", "prefill", "step")
SCORE_NOTE = (
    "Scores are percent, and a perplexity for wikitext. A difference is from the full cache over the same prompts, "
    f'with its 95% interval. {LEGEND} "held" is the share of the prompt in the cache when the answer begins, "answer" '
    'the number of output tokens, "wraps" how often the ring wrapped.'
)
COST_NOTE = (
    '"held" and "a step reads" are entries of each key-value head, "recalled" its pages that a step had to fetch. '
    "All caches ran in one engine."
)


class Item(NamedTuple):
    """A line of a list. outcome: what the line says of a cache, see `outcome.Outcome`; "" if it says nothing."""

    name: str
    text: str
    outcome: str = ""


class Section(NamedTuple):
    """A list or a table under its title. outcomes: for each row what its `DIFFERENCE` says. command: to run next."""

    title: str
    text: str = ""
    items: Sequence[Item] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    outcomes: Sequence[str] = ()
    command: str = ""


def sections(folder: Path, advice: Advice | None = None) -> Iterator[Section]:
    """Yield the parts of the report of a folder's journal: verdicts, tables, costs, and what to run next."""
    path = folder / journal.NAME
    records = list(journal.read(path))
    comparisons = compare(records)
    for comparison in comparisons:
        lines = [Item(verdict.cell, sentences.line(verdict), verdict.outcome) for verdict in comparison.verdicts]
        yield Section(sentences.headline(comparison), sentences.of_full(comparison), lines)
    if failed := list(failures(records)):
        yield Section(f"{sum(bool(record.error) for record in records):,} answers failed", items=failed)
    for title, text, scores in (
        ("means over tasks", "", group_scores(records)),
        ("every task", SCORE_NOTE, task_scores(records)),
    ):
        if scores:
            yield Section(title, text, (), HEAD, list(map(row, scores)), list(map(_outcome, scores)))
    yield from _answers(records)
    yield from _costs(costs.read(path))
    yield from _advised(advice) if advice else _next(comparisons)


def write(folder: Path, parts: Iterable[Section]) -> Path:
    """Write the sections as DIR/report.md, and return its path."""
    about = journal.about(folder / journal.NAME)
    settings = [f"{name} {value}" for name, value in about.items() if name not in ("model", "usual", "sessions")]
    machines = [f"{session.get('machine')}, ringkv {session.get('version')}" for session in about["sessions"]]
    title = f"# {about.get('model')}: what compression costs"
    text = [title, f"{'; '.join([', '.join(['greedy', *settings]), *machines])}.", *map(_markdown, parts)]
    (folder / NAME).write_text("\n\n".join(text) + "\n", encoding="utf-8")
    return folder / NAME


def _markdown(part: Section) -> str:
    table = [part.head, ["---"] * len(part.head), *part.rows] if part.rows else []
    blocks = (
        f"## {part.title[:1].upper()}{part.title[1:]}",
        part.text,
        "\n".join(f"- **{item.name}**: {item.text}" for item in part.items),
        "\n".join(f"| {' | '.join(cells)} |" for cells in table),
        part.command and f"```sh\n{part.command}\n```",
    )
    return "\n\n".join(filter(None, blocks))


def _answers(records: Sequence[Record]) -> Iterator[Section]:
    """Yield the answers to each of a user's first prompts, that of the full cache before those of the others."""
    prompts = defaultdict(list)
    for record in sorted(records, key=lambda record: record.cell != FULL):
        if record.task in GROUPS["own"] and record.text and record.score is not None:
            prompts[record.place, record.sample].append(record)
    for (place, sample), same in islice(sorted(prompts.items(), key=lambda item: int(item[0][1])), SHOWN):
        texts = ((one, " ".join(one.text.split())[:EXCERPT]) for one in same)
        items = [Item(f"{one.cell}, {100 * (one.score or 0):.0f}%", text) for one, text in texts]
        yield Section(f"answers to prompt {sample}{sentences.PLACES[place]}", items=items)


def failures(records: Sequence[Record]) -> Iterator[Item]:
    """Yield each cell's failures with their number; of reasons that differ in numbers alone, the first."""
    reasons = defaultdict(list)
    for record in records:
        if record.error:
            reasons[record.cell, re.sub(r"\d[\d,]*", "", record.error)].append(record.error)
    yield from (Item(f"{cell}, {len(same):,}", same[0]) for (cell, _), same in sorted(reasons.items()))


def row(score: CellScore) -> tuple[str, ...]:
    """Return the cells of a row with `HEAD`."""
    place = "" if score.is_loss else sentences.PLACES[score.place]
    averages = (f"{100 * score.kept:.0f}%", f"{score.output_tokens:,.0f}") if score.count else ("", "")
    return (
        f"{score.task}{place}{'' if score.length is None else f', {score.length:,}'}",
        score.cell,
        str(score.count),
        "failed" if score.mean is None else f"{score.mean:.2f}" if score.is_loss else f"{score.mean:.1f}",
        _difference(score, "%" if score.is_loss else ""),
        *averages,
        f"{score.ring_wraps:.1f}" if score.ring_wraps else "",
    )


def _difference(score: CellScore, unit: str) -> str:
    if score.over_full is None:
        return ""
    mean, low, high = score.over_full.mean, score.over_full.low, score.over_full.high
    ends = f" [{low:+.1f}, {high:+.1f}]" if isfinite(low) else ""
    few = f", {WORDS['few']}" if _outcome(score) == "few" else ""
    return f"{mean:+.1f}{unit}{ends}{few}"


def _outcome(score: CellScore) -> str:
    return outcome(score.over_full, score.count, more_is_better=not score.is_loss) if score.over_full else ""


def _costs(measured: Sequence[Cost]) -> Iterator[Section]:
    """Yield a table for each prompt, number of requests and engine, within which costs are comparable."""
    tables = defaultdict(list)
    for cost in measured:
        if cost.step:
            engine = f" ({cost.engine})" if cost.engine else ""
            title = f"costs of a prompt of {cost.prompt:,} tokens; steps of {cost.requests} requests{engine}"
            recalled = f"{cost.recalled:,.1f}" if cost.recalled else ""
            times = f"{cost.prefill:.2f} s", f"{1e3 * cost.step:.1f} ms"
            tables[title].append((cost.cell, f"{cost.held:,}", f"{cost.read:,}", recalled, *times))
    yield from (Section(title, COST_NOTE, (), COST_HEAD, rows) for title, rows in tables.items())


def _advised(advice: Advice) -> Iterator[Section]:
    yield Section("advice", advice.limit, (), OFFER_HEAD, list(map(_offer, advice.offers)))
    yield Section(f"{advice.chosen.cell}: {advice.why}", command=advice.command)


def _offer(offer: Offer) -> tuple[str, ...]:
    lost = "" if offer.lost is None else f"{offer.lost + 0.0:.1f}"  # not -0.0
    ends = "" if offer.most_lost is None else f" [{offer.least_lost:.1f}, {offer.most_lost:.1f}]"
    sizes = show_bytes(offer.slot_bytes), show_bytes(offer.read_bytes)
    times = (f"{offer.cost.prefill:.1f} s", f"{1e3 * offer.cost.step:.0f} ms") if offer.cost else ("", "")
    return offer.cell, str(offer.prompts), f"{offer.score:.1f}", lost + ends, *sizes, *times


def _next(comparisons: Sequence[Comparison]) -> Iterator[Section]:
    """Yield what to run after a study without advice."""
    if not comparisons:
        text = "Nothing can be compared, because the full cache has no answers. Add full to --policies."
    elif any(verdict.outcome == "few" for comparison in comparisons for verdict in comparison.verdicts):
        text = "Run it again with a larger --count, or more lines in your file. Only new prompts are answered."
    else:
        text = "Run the same command with --advise. It prints the `ringkv serve` command that takes the fewest bytes."
    yield Section("next", text)
