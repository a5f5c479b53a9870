"""ringkv eval: what compression costs a model, on tasks with long prompts."""

from math import inf
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.counts import parse_count
from ringkv.cli.options import SWITCH, StudyOptions
from ringkv.cli.output import console, print_table, say
from ringkv.llm.show_progress import show_progress

SLOTS = 8
STUDY = "Study"


def _study(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=STUDY, show_default=True)


def study(
    *,
    engine: StudyOptions,
    tasks: Annotated[
        str, _study("--tasks", "NAMES", "Tasks or groups of them: ruler, longbench, documents, writing, text.")
    ] = "ruler",
    policies: Annotated[
        str, _study("--policies", "NAMES", "Of full, streaming, snapkv, snapstream.")
    ] = "full,streaming,snapkv,snapstream",
    budgets: Annotated[
        str, _study("--budgets", "LIST", "Shares of each prompt, such as 4x for a quarter, or numbers of entries.")
    ] = "2x,4x,8x",
    lengths: Annotated[
        str, _study("--lengths", "TOKENS", "Of generated prompts, such as 4k,8k; real ones are cut to the longest.")
    ] = "4k",
    question: Annotated[
        str, _study("--question", "WHERE", "Inside the prompt, after its compression, or both: inside,after.")
    ] = "inside",
    count: Annotated[int, _study("--count", "N", "Prompts of each task, at each length.")] = 10,
    seed: Annotated[int, _study("--seed", "N", "Of generated prompts.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder of the data sets: longbench/, longbench_v2/, longeval/, math/, code/, text/.",
            rich_help_panel=STUDY,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Where answers and report go; eval-MODEL by default.", rich_help_panel=STUDY
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", metavar="N", help="Stop after this long; the same command resumes.", rich_help_panel=STUDY
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", metavar=SWITCH, help="Only print how long it would take.", rich_help_panel=STUDY),
    ] = False,
) -> None:
    """Measure what compression costs: tasks x policies x budgets, through the graphs and batching that serve requests.

    Every prompt is prefilled once and compressed under every policy and budget; all answer together, greedily. Answers
    are written as they come: the same command resumes a run that was stopped, and more tasks or budgets can be added.
    It ends with a table and DIR/report.html.

        ringkv eval --tasks niah_single_2,vt --lengths 4k --count 5
        ringkv eval --model qwen2.5-coder-1.5b --tasks ruler,longbench --data DATA --lengths 8k --budgets 2x,4x,8x
        ringkv eval --tasks wikitext --data DATA --lengths 2k,4k --policies full,streaming,snapstream

    Differences are from the full cache over the same prompts, with 95% intervals. If an interval contains zero, the
    difference may be noise.
    """
    from ringkv.evaluation.needed import check

    check()
    from ringkv.evaluation.cells import crossed
    from ringkv.evaluation.evaluate import Study, evaluate
    from ringkv.plan.choose_kv import settings

    options = engine.options(SLOTS)
    asked = Study(
        model=engine.model,
        tasks=_words(tasks),
        cells=crossed(_policies(policies), _words(budgets), settings(options)),
        lengths=[_length(word) for word in _words(lengths)],
        places=_places(question),
        count=count,
        seed=seed,
        data=data,
    )
    folder = to or Path(f"eval-{Path(engine.model).name}")
    seconds = 0.0 if estimate else inf if minutes is None else 60 * minutes
    try:
        with show_progress() as tell:
            for sentence in evaluate(asked, options, folder, tell, seconds):
                say(sentence)
    except KeyboardInterrupt:
        if folder.exists():
            say(f"what was answered is in {folder}; the same command resumes")
        raise
    if seconds:
        _report(folder)


def _report(folder: Path) -> None:
    from ringkv.evaluation import journal
    from ringkv.evaluation.report.page import HEAD, row, write
    from ringkv.evaluation.summary import figures, group_figures

    records = list(journal.read(folder / journal.NAME))
    for title, found in (("means over tasks", group_figures(records)), ("every task", figures(records))):
        if found:
            headers = (*HEAD[:2], *(f"{name} " for name in HEAD[2:]))  # what is text, and what is numbers
            print_table(headers, [row(one).cells for one in found], title)
    console().print(f"\n{write(folder)}")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _policies(text: str) -> list[str]:
    from ringkv.base.kv import POLICIES

    for word in _words(text):
        if word not in POLICIES:
            raise InvalidRequest(f"there is no policy {word!r}; there are {', '.join(POLICIES)}", "policies")
    return _words(text)


def _length(word: str) -> int:
    length = parse_count(word, "lengths")
    assert length is not None
    return length


def _places(text: str) -> list[Any]:
    from ringkv.evaluation.sample import Place

    for word in _words(text):
        if word not in get_args(Place):
            raise InvalidRequest(f"a question stands {' or '.join(get_args(Place))}, not {word!r}", "question")
    return _words(text)
