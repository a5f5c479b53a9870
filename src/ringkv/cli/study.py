"""Print what a study found, and which flags of `ringkv serve` it recommends."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ringkv.cli.output import console, print_table, toned
from ringkv.llm.show_progress import show_progress
from ringkv.plan.options import Options

if TYPE_CHECKING:
    from ringkv.evaluation.offers import Advice, Served
    from ringkv.evaluation.pending import Study
    from ringkv.evaluation.report import Section


def find_served(model: str, options: Options) -> "Served":
    """Return what a study of this model is for. Raises what `locate` raises."""
    from ringkv.evaluation.offers import Served
    from ringkv.models.config import load_config
    from ringkv.residency.locate import locate

    with show_progress() as progress:
        folder = locate(model, progress)
    return Served(model, folder, load_config(folder), options)


def advise_study(served: "Served", study: "Study", folder: Path, most_lost: float) -> "Advice":
    """Return what each cell of a study would cost to serve, and the command that serves with the recommended one.

    folder: the answers. It may have answers of other studies, which do not count. The costs are those of the longest
    prompt that was answered, in an engine with these options. Raises InvalidRequest if the full cache has no answer of
    this study.
    """
    from ringkv.evaluation import costs, journal
    from ringkv.evaluation.offers import advise
    from ringkv.evaluation.pending import asked
    from ringkv.evaluation.tasks.catalogue import select_tasks

    path, lengths = folder / journal.NAME, (None, *study.lengths)
    names = asked(select_tasks(study.tasks), study.places)
    records = [
        record
        for record in journal.read(path)
        if (record.task, record.place) in names
        and (not study.lengths or record.facts.get("length") in lengths)  # some prompts have no length of their own
    ]
    longest, engine = max((record.prompt_tokens for record in records), default=0), costs.engine_of(served.options)
    measured = [cost for cost in costs.read(path) if cost.step and cost.prompt <= longest and cost.engine == engine]
    by_cell = {cost.cell: cost for cost in sorted(measured, key=lambda cost: cost.prompt)}
    return advise(served, study.cells, records, most_lost, by_cell)


def print_report(folder: Path, advice: "Advice | None" = None) -> None:
    """Print the report of the answers in a folder, and write it there."""
    from ringkv.evaluation.report import sections, write

    parts, out = list(sections(folder, advice)), console()
    for section in parts:
        if section.rows:
            head = [name if name in ("task", "cache") else f"{name} " for name in section.head]  # numbers to the right
            print_table(head, list(_rows(section)), section.title)
        else:
            out.print(Text(section.title, style="bold"), soft_wrap=True)
        if section.text:
            out.print(section.text, style="dim" if section.rows else "")
        for item in section.items:
            out.print(Text(f"  {item.name}: ").append(toned(item.text, item.outcome)), soft_wrap=True)
        if section.command:
            out.print(section.command, soft_wrap=True)
        out.print()
    out.print(f"{write(folder, parts)}", soft_wrap=True)


def _rows(section: "Section") -> Iterator[Sequence[str | Text]]:
    """Yield the rows. A difference from the full cache is in the colour of its outcome."""
    from ringkv.evaluation.report import DIFFERENCE

    for row, outcome in zip_longest(section.rows, section.outcomes, fillvalue=""):
        yield [toned(cell, outcome if name == DIFFERENCE else "") for name, cell in zip(section.head, row, strict=True)]
