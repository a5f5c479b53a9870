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

FOLDER = RESULTS / "accuracy"
DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE, TASKS_PAGE = DOCS / "accuracy.md", DOCS / "accuracy-tasks.md"
BEGIN, END = "<!-- studies:begin -->", "<!-- studies:end -->"
NOTHING = "Not yet: no study has answers. What is known so far is the needles in [performance.md](performance.md)."
ASKED = """\
### What was asked beforehand

On Qwen2.5-Coder-1.5B; the question ends the prompt unless said otherwise. Brackets hold 95% intervals over prompts."""
PAPER = """\
### StreamingLLM and SnapStream, task by task

The paper's comparison, where its tasks can run here: the same entries with and without a choice."""
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
    """How many prompts were asked for, and how many of them there are: data sets may hold fewer."""
    study = STUDIES[name]
    words = f"{study.count} prompts of each task and length were fixed beforehand"
    asked = [one.count + one.failed for one in figures(answers(folder))]
    missing = {cell.label for cell in study.cells} - {one.cell for one in answers(folder)}
    if min(asked) >= study.count and not missing:
        return f"{words}."
    answered = f"{min(asked)} to {max(asked)}" if min(asked) < max(asked) else f"{max(asked)}"
    without = f", and none under {', '.join(sorted(missing))}" if missing else ""
    return f"{words}, where the data has so many; {answered} are answered{without}."


def answers(folder: Path) -> list[Record]:
    return list(journal.read(folder / journal.NAME))


def done(folder: Path) -> int:
    """Answers of a study."""
    return len(answers(folder)) if (folder / journal.NAME).is_file() else 0
