"""Show which flags of `ringkv serve` a study recommends."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringkv.cli.output import console, print_json, print_table
from ringkv.llm.show_progress import show_progress
from ringkv.plan.options import Options
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.evaluation.advice import Advice, Offer
    from ringkv.evaluation.costs import Cost
    from ringkv.evaluation.evaluate import Study
    from ringkv.evaluation.journal import Record
    from ringkv.evaluation.offers import Served

HEAD = ("cache", "prompts ", "score ", "points lost ", "slot ", "a step reads ", "prefill ", "step ")


def find_served(model: str, options: Options) -> "Served":
    """Return what a study of this model is for. Raises what `locate` raises."""
    from ringkv.evaluation.offers import Served
    from ringkv.models.config import load_config
    from ringkv.residency.locate import locate

    with show_progress() as progress:
        folder = locate(model, progress)
    return Served(model, folder, load_config(folder), options)


def print_advice(served: "Served", study: "Study", answers: Path, most_lost: float, as_json: bool = False) -> None:
    """Print what each cell would cost, and the command that serves with the recommended one; the report has it too.

    answers: the folder of the study. It may have answers of other studies, which do not count. Raises InvalidRequest if
    the full cache has none of this one.
    """
    from ringkv.evaluation import journal
    from ringkv.evaluation.offers import advise
    from ringkv.evaluation.pending import asked
    from ringkv.evaluation.report.page import write
    from ringkv.evaluation.tasks.catalogue import select_tasks

    own = asked(select_tasks(study.tasks), study.places)
    every = journal.read(answers / journal.NAME)
    records = [one for one in every if (one.task, one.place) in own and _has_length_of(study, one)]
    found = advise(served, study.cells, records, most_lost, _costs(answers / journal.NAME, records, served.options))
    if as_json:
        return print_json(found)
    _print(found)
    write(answers, advice=found)


def _has_length_of(study: "Study", one: "Record") -> bool:
    """Return whether a prompt has a length of the study; one that was not made to a length has no length of its own."""
    length = one.facts.get("length")
    return length is None or not study.lengths or length in study.lengths


def _costs(journal: Path, records: "Sequence[Record]", options: Options) -> "Mapping[str, Cost]":
    """Return the costs by cell, of an engine with these options: those of the longest prompt, if it was answered."""
    from ringkv.evaluation import costs

    longest, engine = max((one.prompt_tokens for one in records), default=0), costs.engine_of(options)
    own = [one for one in costs.read(journal) if one.step and one.prompt <= longest and one.engine == engine]
    return {one.cell: one for one in sorted(own, key=lambda one: one.prompt)}


def _print(found: "Advice") -> None:
    print_table(HEAD, [_row(one) for one in found.offers], "advice")
    console().print(f"\n{found.chosen.cell}: {found.why}\n{found.limit}\n{found.command}", soft_wrap=True)


def _row(one: "Offer") -> tuple[str, ...]:
    lost = "" if one.lost is None else f"{one.lost + 0.0:.1f}"  # not -0.0
    ends = "" if one.most_lost is None else f" [{one.least_lost:.1f}, {one.most_lost:.1f}]"
    sizes = show_bytes(one.slot_bytes), show_bytes(one.read_bytes)
    times = (f"{one.cost.prefill:.1f} s", f"{1e3 * one.cost.step:.0f} ms") if one.cost else ("", "")
    return one.cell, str(one.prompts), f"{one.score:.1f}", lost + ends, *sizes, *times
