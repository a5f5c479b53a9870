"""ringkv eval: a model's accuracy with compressed caches, on tasks with long prompts."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.counts import parse_count
from ringkv.cli.options import SWITCH, StudyOptions
from ringkv.cli.output import print_json, print_stderr
from ringkv.cli.study import advise_study, find_served, print_report
from ringkv.evaluation.advice import MOST_LOST
from ringkv.llm.show_progress import show_progress
from ringkv.plan.options import Options

if TYPE_CHECKING:
    from ringkv.evaluation.evaluate import Study
    from ringkv.evaluation.offers import Served

SLOTS = 8
STUDY = "Study"
FULL = "full"
COMPARED = (FULL, "streaming", "snapkv", "snapstream")
ADVISED = (FULL, "snapstream", "arkvale")
ADVICE_MINUTES = 30.0
COUNTS = {False: 10, True: 60}  # prompts of a task, by whether they are for advice: 60 equal answers bound a loss at 5%
SERVED = ("inside", "next")  # places of questions that a server takes


def _study(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=STUDY, show_default=True)


def study(
    *,
    engine: StudyOptions,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            metavar="NAMES",
            help="Tasks or groups of tasks: ruler (default), longbench, documents, writing, text, lists.",
            rich_help_panel=STUDY,
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="NAMES",
            help="Policies to compare. Default: full,streaming,snapkv,snapstream, or with --advise "
            "full,snapstream,arkvale.",
            rich_help_panel=STUDY,
        ),
    ] = None,
    budgets: Annotated[
        str, _study("--budgets", "LIST", "Shares of each prompt, such as 4x for a quarter, or counts of entries.")
    ] = "2x,4x,8x",
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths",
            metavar="TOKENS",
            help="Lengths of generated prompts, such as 4k,8k; real prompts are truncated to the longest. Default: 4k, "
            "or the model's context with --prompts.",
            rich_help_panel=STUDY,
        ),
    ] = None,
    question: Annotated[
        str,
        _study(
            "--question",
            "WHERE",
            "Where questions are: inside the prompt, after its compression, or next: in a conversation's next turn.",
        ),
    ] = "inside",
    count: Annotated[
        int | None, _study("--count", "N", "Prompts per task and length. Default: 10, or 60 with --advise.")
    ] = None,
    seed: Annotated[int, _study("--seed", "N", "Seed of generated prompts.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder of the data sets: longbench/, longbench_v2/, longeval/, math/, code/, text/.",
            rich_help_panel=STUDY,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='Instead of tasks, your own prompts: a JSON object on each line with "prompt" and, if you have them, '
            '"question", "answers" and "max_tokens". Without answers the full cache\'s count as right.',
            rich_help_panel=STUDY,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Folder of answers and report; eval-MODEL by default, advise-MODEL with --advise.",
            rich_help_panel=STUDY,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            metavar="N",
            help="Stop after N minutes; the same command resumes. Default: none, or 30 with --advise.",
            rich_help_panel=STUDY,
        ),
    ] = None,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            metavar=SWITCH,
            help="Print the `ringkv serve` command that holds and reads the fewest bytes and loses at most --max-loss.",
            rich_help_panel=STUDY,
        ),
    ] = False,
    max_loss: Annotated[
        float, _study("--max-loss", "POINTS", "With --advise: points that the answers may lose, at 95% confidence.")
    ] = MOST_LOST,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", metavar=SWITCH, help="With --advise: print one JSON value on stdout.", rich_help_panel=STUDY
        ),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", metavar=SWITCH, help="Only print the estimated time.", rich_help_panel=STUDY),
    ] = False,
) -> None:
    """Measure accuracy under compression: tasks x policies x budgets, with the graphs and batching of the server.

    Every prompt is prefilled once and compressed with every policy and budget; all are answered in one batch, greedily.
    Each answer is saved when it is complete: the same command resumes a stopped run, and tasks or budgets can be added.
    The results are printed and written to DIR/report.md.

        ringkv eval --tasks niah_single_2,vt --lengths 4k --count 5
        ringkv eval qwen2.5-coder-1.5b --tasks ruler,longbench --data DATA --lengths 8k --budgets 2x,4x,8x
        ringkv eval qwen2.5-coder-1.5b --prompts mine.jsonl --budgets 4x,8x
        ringkv eval qwen2.5-coder-1.5b --prompts mine.jsonl --advise
        ringkv eval --tasks wikitext --data DATA --lengths 2k,4k --policies full,streaming,snapstream

    Differences are from the full cache over the same prompts, with 95% intervals. If an interval contains zero, the
    difference may be noise, or there are too few prompts to tell.
    """
    from ringkv.evaluation.needed import check
    from ringkv.evaluation.tasks.catalogue import select_tasks

    names = _tasks(tasks, prompts)
    select_tasks(names)  # refuses unknown names before packages are missed
    places = _places(question)
    _check_advice(advise, places, as_json)
    seconds = 0.0 if estimate else 60 * _minutes(minutes, advise)
    if seconds:  # an estimate needs no scores
        check()
    from ringkv.evaluation.cells import crossed
    from ringkv.evaluation.evaluate import Study
    from ringkv.plan.choose_kv import settings

    options = engine.options(SLOTS)
    count = count if count is not None else COUNTS[advise]
    served = find_served(engine.model, options) if advise else None
    requested = Study(
        model=engine.model,
        tasks=names,
        cells=crossed(_policies(policies, served), _words(budgets), settings(options)),
        lengths=_lengths(lengths, prompts),
        places=places,
        count=count,
        seed=seed,
        data=data,
        prompts=prompts,
    )
    if advise and seconds:
        print_stderr(f"at most {count} prompts a task and {seconds / 60:g} minutes; --count and --minutes change that")
    folder = to or Path(f"{'advise' if advise else 'eval'}-{Path(engine.model).name}")
    end = monotonic() + seconds
    own = served.in_next_turns(_words(budgets)) if served and policies is None and "next" in places else []
    try:
        _evaluate(requested, options, folder, seconds)
        if own:
            _evaluate(replace(requested, cells=own), options, folder, seconds and end - monotonic())
    except KeyboardInterrupt:
        if folder.exists():
            print_stderr(f"the answers so far are in {folder}; the same command resumes")
        raise
    if not seconds:
        return
    advice = None
    try:
        if served:
            advice = advise_study(served, replace(requested, cells=[*requested.cells, *own[1:]]), folder, max_loss)
    finally:  # the report is of use without advice too
        if not as_json:
            print_report(folder, advice)
    if as_json:
        print_json(advice)


def _evaluate(study: "Study", options: Options, folder: Path, seconds: float) -> None:
    """Answer for so many seconds; 0 only estimates."""
    from ringkv.evaluation.evaluate import evaluate

    if seconds < 0:
        print_stderr("the time is over before the next turns of kv_select kvzip; the same command resumes")
        return
    with show_progress() as progress:
        for line in evaluate(study, options, folder, progress, seconds):
            print_stderr(line)


def _check_advice(advise: bool, places: Sequence[str], as_json: bool) -> None:
    if as_json and not advise:
        raise InvalidRequest("--json prints what --advise found; add --advise", "json")
    other = [place for place in places if place not in SERVED]
    if advise and other:
        raise InvalidRequest(
            f"--advise is for questions that a server takes, and question is {other[0]}; choose --question "
            + " or ".join(SERVED),
            "question",
        )


def _minutes(given: float | None, advise: bool) -> float:
    if given is not None:
        return given
    return ADVICE_MINUTES if advise else inf


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _policies(text: str | None, served: "Served | None") -> list[str]:
    """Return the policies to compare. served: what the advice is for; by default it is about those that it can have."""
    from ringkv.base.kv import POLICIES

    if text is None:
        return served.usable(ADVISED) if served else list(COMPARED)
    words = _words(text)
    for word in words:
        if word not in POLICIES:
            raise InvalidRequest(f"unknown policy {word!r}; the policies are {', '.join(POLICIES)}", "policies")
    if served and FULL not in words:
        raise InvalidRequest("--advise compares with the full cache; add full to the policies", "policies")
    return words


def _tasks(text: str | None, prompts: Path | None) -> list[str]:
    """Return the names of tasks: those of a user's own prompts if they are given."""
    if prompts is not None and text is not None:
        raise InvalidRequest("--prompts takes the place of tasks; leave one out", "tasks")
    return ["own"] if prompts is not None else _words(text or "ruler")


def _lengths(text: str | None, prompts: Path | None) -> list[int]:
    """Return the lengths; none if a user's own prompts are as long as they are."""
    if text is None:
        return [] if prompts is not None else [4096]
    return [_length(word) for word in _words(text)]


def _length(word: str) -> int:
    length = parse_count(word, "lengths")
    assert length is not None
    return length


def _places(text: str) -> list[Any]:
    from ringkv.evaluation.sample import Place

    for word in _words(text):
        if word not in get_args(Place):
            raise InvalidRequest(f"question is {word!r}; it must be {' or '.join(get_args(Place))}", "question")
    return _words(text)
