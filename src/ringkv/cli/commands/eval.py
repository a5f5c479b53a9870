"""ringkv eval: a model's accuracy with compressed caches, on tasks with long prompts."""

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, cast, get_args

from ringkv.base.checks import check, one_of
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES
from ringkv.cli.options import MODEL_NAME, SWITCH, ModelName, StudyOptions, option, parse_count
from ringkv.cli.output import print_json, print_stderr
from ringkv.cli.study import advise_study, find_served, print_report
from ringkv.evaluation.sample import Place
from ringkv.llm.show_progress import show_progress
from ringkv.plan.options import Options

if TYPE_CHECKING:
    from ringkv.evaluation.offers import Served
    from ringkv.evaluation.pending import Study

SLOTS = 8
FULL = "full"
COMPARED = (FULL, "streaming", "snapkv", "snapstream")
ADVISED = (FULL, "snapstream", "arkvale")
ADVICE_MINUTES = 30.0
COUNTS = {False: 10, True: 60}  # prompts of a task, by whether they are for advice: 60 equal answers bound a loss at 5%
SERVED = ("inside", "next")  # places of questions that a server takes

_study = partial(option, "Study", show_default=True)


@dataclass(frozen=True)
class EvalOptions:
    """What a study asks under which caches, and what it gives."""

    tasks: Annotated[
        str | None,
        _study(
            "--tasks", "NAMES", "Tasks or groups of tasks: ruler (default), longbench, documents, writing, text, lists."
        ),
    ] = None
    policies: Annotated[
        str | None,
        _study(
            "--policies",
            "NAMES",
            "Policies to compare. Default: full,streaming,snapkv,snapstream, or with --advise full,snapstream,arkvale.",
        ),
    ] = None
    budgets: Annotated[
        str, _study("--budgets", "LIST", "Shares of each prompt, such as 4x for a quarter, or counts of entries.")
    ] = "2x,4x,8x"
    lengths: Annotated[
        str | None,
        _study(
            "--lengths",
            "TOKENS",
            "Lengths of generated prompts, such as 4k,8k; real prompts are truncated to the longest. Default: 4k, "
            "or the model's context with --prompts.",
        ),
    ] = None
    question: Annotated[
        str,
        _study(
            "--question",
            "WHERE",
            "Where questions are: inside the prompt, after its compression, or next: in a conversation's next turn.",
        ),
    ] = "inside"
    count: Annotated[
        int | None, _study("--count", "N", "Prompts per task and length. Default: 10, or 60 with --advise.")
    ] = None
    seed: Annotated[int, _study("--seed", "N", "Seed of generated prompts.")] = 0
    data: Annotated[
        Path | None,
        _study(
            "--data",
            "DIR",
            "Folder of the data sets: longbench/, longbench_v2/, longeval/, math/, code/, text/.",
            exists=True,
            file_okay=False,
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        _study(
            "--prompts",
            "FILE",
            'Instead of tasks, your own prompts: a JSON object on each line with "prompt" and, if you have them, '
            '"question", "answers" and "max_tokens". Without answers the full cache\'s count as right.',
            exists=True,
            dir_okay=False,
        ),
    ] = None
    to: Annotated[
        Path | None,
        _study(
            "--to",
            "DIR",
            "Folder of answers and report. Default: eval-MODEL in the current folder, or advise-MODEL with --advise.",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        _study("--minutes", "N", "Stop after N minutes; the same command resumes. Default: none, or 30 with --advise."),
    ] = None
    advise: Annotated[
        bool,
        _study(
            "--advise",
            SWITCH,
            "Print the `ringkv serve` command that holds and reads the fewest bytes and loses at most --max-loss.",
        ),
    ] = False
    max_loss: Annotated[
        float, _study("--max-loss", "POINTS", "With --advise: points that the answers may lose, at 95% confidence.")
    ] = 5.0
    as_json: Annotated[bool, _study("--json", SWITCH, "With --advise: print one JSON value on stdout.")] = False
    estimate: Annotated[
        bool, _study("--estimate", SWITCH, "Only print the longest time, measured without compiled graphs.")
    ] = False

    def check(self) -> None:
        """Raise InvalidRequest for unknown places and policies, and for options that do not belong together."""
        places, policies = _words(self.question), _words(self.policies or FULL)
        check([one_of("question", word, get_args(Place)) for word in places])
        check([one_of("policies", word, POLICIES) for word in policies])
        unserved = [word for word in places if word not in SERVED]
        for is_wrong, text, param in (
            (self.prompts and self.tasks is not None, "--prompts takes the place of tasks; leave one out", "tasks"),
            (self.as_json and not self.advise, "--json prints what --advise found; add --advise", "json"),
            (
                self.advise and unserved,
                f"--advise is for questions that a server takes, and question is {', '.join(unserved)}; choose "
                f"--question {' or '.join(SERVED)}",
                "question",
            ),
            (
                self.advise and FULL not in policies,
                "--advise compares with the full cache; add full to the policies",
                "policies",
            ),
        ):
            if is_wrong:
                raise InvalidRequest(text, param)

    @property
    def seconds(self) -> float:
        """Longest time of the study; 0 only estimates it."""
        minutes = self.minutes if self.minutes is not None else ADVICE_MINUTES if self.advise else inf
        return 0.0 if self.estimate else 60 * minutes

    def study(self, model: str, options: Options, served: "Served | None") -> "Study":
        """Return the study. served: what advice is for. By default it is about the policies that this can have.

        A user's own prompts are as long as they are, unless lengths are given.
        """
        from ringkv.evaluation.cells import crossed
        from ringkv.evaluation.pending import Study
        from ringkv.plan.choose_kv import settings

        usual = served.usable(ADVISED) if served and self.policies is None else COMPARED
        policies = usual if self.policies is None else _words(self.policies)
        lengths = self.lengths or ("" if self.prompts else "4k")
        return Study(
            model=model,
            tasks=["own"] if self.prompts else _words(self.tasks or "ruler"),
            cells=crossed(policies, _words(self.budgets), settings(options)),
            lengths=[parse_count(word, "lengths") for word in _words(lengths)],
            places=cast("list[Place]", _words(self.question)),
            count=self.count if self.count is not None else COUNTS[self.advise],
            seed=self.seed,
            data=self.data,
            prompts=self.prompts,
        )


def evaluate(*, asked: EvalOptions, model: ModelName = MODEL_NAME, engine: StudyOptions) -> None:
    """Measure accuracy under compression: tasks x policies x budgets, with the graphs and batching of the server.

    Every prompt is prefilled once and compressed with every policy and budget; all are answered in one batch, greedily.
    Each answer is saved when it is complete: the same command resumes a stopped run, and tasks or budgets can be added.
    The results are printed and written to report.md in the folder that --to names.

        ringkv eval --tasks niah_single_2,vt --lengths 4k --count 5
        ringkv eval qwen2.5-coder-1.5b --tasks ruler,longbench --data DATA --lengths 8k --budgets 2x,4x,8x
        ringkv eval qwen2.5-coder-1.5b --prompts mine.jsonl --budgets 4x,8x
        ringkv eval qwen2.5-coder-1.5b --prompts mine.jsonl --advise
        ringkv eval --tasks wikitext --data DATA --lengths 2k,4k --policies full,streaming,snapstream

    Differences are from the full cache over the same prompts, with 95% intervals. If an interval contains zero, the
    difference may be noise, or there are too few prompts to tell.
    """
    from ringkv.evaluation.evaluate import check
    from ringkv.evaluation.needed import check as check_packages

    asked.check()
    options = engine.filled(slots=SLOTS)
    study = asked.study(model, options, None)
    check(study, options)  # refuses what is invalid before packages are missed and a model is downloaded
    seconds = asked.seconds
    if seconds:  # an estimate needs no scores
        check_packages()
    served = find_served(model, options) if asked.advise else None
    if served:
        study = asked.study(model, options, served)
    if served and seconds:
        print_stderr(
            f"at most {study.count} prompts a task and {seconds / 60:g} minutes; --count and --minutes change that"
        )
    folder = (asked.to or Path(f"{'advise' if served else 'eval'}-{Path(model).name}")).absolute()
    if seconds:
        print_stderr(f"answers and report go to {folder}; --to DIR changes that")
    end = monotonic() + seconds
    is_open = served and asked.policies is None and "next" in study.places
    later = served.in_next_turns(_words(asked.budgets)) if served and is_open else []
    try:
        _answer(study, options, folder, seconds)
        if later:
            _answer(replace(study, cells=later), options, folder, seconds and end - monotonic())
    except KeyboardInterrupt:
        if folder.exists():
            print_stderr(f"the answers so far are in {folder}; the same command resumes")
        raise
    if not seconds:
        return
    advice = None
    try:
        if served:
            advice = advise_study(served, replace(study, cells=[*study.cells, *later[1:]]), folder, asked.max_loss)
    finally:  # the report is of use without advice too
        if not asked.as_json:
            print_report(folder, advice)
    if asked.as_json:
        print_json(advice)


def _answer(study: "Study", options: Options, folder: Path, seconds: float) -> None:
    """Answer for so many seconds; 0 only estimates."""
    from ringkv.evaluation.evaluate import evaluate

    if seconds < 0:
        print_stderr("the time is over before the next turns of kv_select kvzip; the same command resumes")
        return
    with show_progress() as progress:
        for line in evaluate(study, options, folder, progress, seconds):
            print_stderr(line)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]
