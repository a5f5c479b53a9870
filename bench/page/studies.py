"""The studies' tables: each group's means in docs/accuracy.md and the README, each task's on a page of its own."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.page.asked import asked_table
from bench.page.paper import paper_table
from bench.report import RESULTS, table
from bench.studies import ABOUT, STUDIES
from ringkv.evaluation import journal
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.page import HEAD, row
from ringkv.evaluation.summary import Figure, figures, group_figures
from ringkv.evaluation.tasks.catalogue import chosen
from ringkv.evaluation.tasks.ruler import suite

FOLDER = RESULTS / "accuracy"
DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE, TASKS_PAGE = DOCS / "accuracy.md", DOCS / "accuracy-tasks.md"
BEGIN, END = "<!-- studies:begin -->", "<!-- studies:end -->"
NOTHING = "Not yet: no study has answers. What is known so far is the needles in [performance.md](performance.md)."
ASKED = """\
### What was asked

On Qwen2.5-Coder-1.5B; the question ends the prompt unless said otherwise. Brackets hold 95% intervals over prompts.
"No less" is met where the mean is no lower, and missed where all of the interval is below zero. The bars were set
before the studies; first answers told which selector and which settings are held against them. The window of 32 was
picked among thirteen settings on the same prompts of LongBench on which it is judged here, and looks a little better
there than it is; its rows of LongBench are of one processor, those of 64 alone of another. Its needles are in new
prompts."""
PAPER = """\
### StreamingLLM and SnapStream, task by task

The paper's comparison, where its tasks can run here: the same entries with and without a choice, which is made with our
settings; with a window of 64 but for programs."""
GENERATED = {*suite.GENERATED, "passkey"}  # their prompts are made, as many as are asked for
PLACES = {"inside": "question in the prompt", "after": "question after it was compressed"}
TASKS_HEAD = """\
# Accuracy, task by task

Made by `python -m bench.accuracy --page` from `bench/results/accuracy`; do not edit. Means, what they say, and how to
read them are in [accuracy.md](accuracy.md). Fewer than five prompts of a task get no interval.
"""


def means(folder: Path) -> str:
    """The means over a study's tasks; of one that has a single task, that task's."""
    records = answers(folder)
    return _shown(group_figures(records) or figures(records))


def tasks(folder: Path) -> str:
    return _shown(figures(answers(folder)))


def brief(folder: Path) -> str:
    """A mean for each cache, by where the question stood, over the prompts that every cache answered there."""
    found = group_figures(shared(answers(folder)))
    by = {(one.cell, one.place): one for one in found}
    cells = list(dict.fromkeys(one.cell for one in found))
    rows = [(cell, _held(by, cell), *(_mean(by, cell, place) for place in PLACES)) for cell in cells]
    return table(("cache", "held", *PLACES.values()), rows)


def shared(records: Sequence[Record]) -> list[Record]:
    """Those of prompts that have an answer under every cell that was asked at the same place."""
    cells: dict[str, set[str]] = defaultdict(set)
    answered: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for one in records:
        cells[one.place].add(one.cell)
        answered[one.task, one.place, one.sample].add(one.cell)
    return [one for one in records if answered[one.task, one.place, one.sample] == cells[one.place]]


def _held(by: dict[tuple[str, str], Figure], cell: str) -> str:
    return next(f"{one.kept:.0%}" for (name, _), one in by.items() if name == cell)


def _mean(by: dict[tuple[str, str], Figure], cell: str, place: str) -> str:
    one = by.get((cell, place))
    return "" if one is None or one.mean is None else f"{one.mean:.1f}"


def _shown(found: Sequence[Figure]) -> str:
    return table(HEAD, [row(one).cells for one in found])


def with_studies(page: str, folder: Path = FOLDER) -> str:
    """The same page with what was asked, found and compared by today between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    parts = [f"{_heading(name, folder / name)}\n\n{means(folder / name)}\n" for name in STUDIES if done(folder / name)]
    whole = "\n".join((f"{ASKED}\n\n{asked_table(folder)}\n", f"{PAPER}\n\n{paper_table(folder)}\n", *parts))
    return f"{before}{BEGIN}\n{whole if parts else NOTHING}\n{END}{after}"


def tasks_page(folder: Path = FOLDER) -> str:
    parts = [f"{_heading(name, folder / name)}\n\n{tasks(folder / name)}\n" for name in STUDIES if done(folder / name)]
    return "\n".join((TASKS_HEAD, *parts))


def _heading(name: str, folder: Path) -> str:
    """What a study is, on what it was answered and how much of it."""
    about = journal.about(folder / journal.NAME)
    made = "; ".join(f"{one['machine']}, ringkv {one['version']}" for one in about["sessions"])
    words = f"`python -m bench.accuracy {name}`: {progress(name, folder)} {about['model']}, weights {about['weights']}"
    return f"### {ABOUT[name]}\n\n{words}; {made}."


def progress(name: str, folder: Path) -> str:
    """How many prompts were asked for, and how many there are: fewer in a data set, or not all are answered yet.

    Cells that the study asks no more stay in its tables and do not count.
    """
    study = STUDIES[name]
    cells = {cell.label for cell in study.cells}
    records = [one for one in answers(folder) if one.cell in cells]
    words = f"{study.count} prompts of each task and length were fixed beforehand"
    found = figures(records)
    counts = [one.count + one.failed for one in found]
    missing = cells - {one.cell for one in records}
    short = {one.task for one in found if one.count + one.failed < study.count}
    short |= {task.name for task in chosen(study.tasks)} - {one.task for one in found}
    if not short and not missing:
        return f"{words}."
    some = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"
    if not missing and not short & GENERATED and len(shared(records)) == len(records):
        return f"{words}; of some tasks the data has fewer, and {some} are answered."
    without = f", and none under {', '.join(sorted(missing))}" if missing else ""
    return f"{words}; **not whole yet:** {some} are answered{without}."


def answers(folder: Path) -> list[Record]:
    return list(journal.read(folder / journal.NAME))


def done(folder: Path) -> int:
    """Answers of a study."""
    return len(answers(folder)) if (folder / journal.NAME).is_file() else 0
