"""accuracy: run the studies that docs/accuracy.md reports; bench/studies.py defines them.

    python -m bench.accuracy                              list the studies and their numbers of answers
    python -m bench.accuracy choosing-qwen --minutes 60   continue one for an hour
    python -m bench.accuracy choosing-qwen --estimate     estimate the remaining time
    python -m bench.accuracy ruler-qwen --tasks vt,cwe --places inside --count 5    run a part of it
    python -m bench.accuracy trained-mla --graphs off     a model that examples/train made in trained/mla
    python -m bench.report                                write the results into docs/

Scored answers are stored in bench/results/accuracy/NAME.jsonl.xz without their texts, because some quote data that we
may not copy. While a study runs, its journal and HTML report are in the cache folder. A study resumes where it stopped,
also on another machine; the journal lists the machines.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.answers import pack, records, unpack
from bench.data import DATA
from bench.results import table
from bench.studies import ABOUT, OPTIONS_OF, STUDIES
from ringkv.evaluation.evaluate import Study, evaluate
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.page import write
from ringkv.evaluation.report.rows import HEAD, row
from ringkv.evaluation.summary import group_scores, task_scores
from ringkv.llm.show_progress import show_progress
from ringkv.machine.paths import cache_dir
from ringkv.plan.options import Options


def main() -> None:
    args = _arguments()
    if args.study is None:
        print("\n".join(f"{name}: {len(records(name)):,} answers. {ABOUT[name]}" for name in STUDIES))
        return
    study = replace(_part(STUDIES[args.study], args), data=args.data if args.data.is_dir() else None)
    folder = cache_dir() / "accuracy" / args.study
    unpack(args.study, folder)
    try:
        _run(study, folder, args)
    finally:
        pack(args.study, folder)
    if not args.estimate:
        print(means(records(args.study)))
        print(write(folder))


def _run(study: Study, folder: Path, args: argparse.Namespace) -> None:
    with show_progress() as report:
        seconds = 0.0 if args.estimate else 60 * args.minutes
        options = Options(slots=args.slots, graphs=args.graphs, device=args.device, **OPTIONS_OF.get(args.study, {}))
        for sentence in evaluate(study, options, folder, report, seconds, keeps_texts=False):
            print(sentence)


def means(answers: Sequence[Record]) -> str:
    """Return the table of means over a study's tasks, or the one task's figures."""
    return table(HEAD, [row(one).cells for one in group_scores(answers) or task_scores(answers)])


def _part(study: Study, args: argparse.Namespace) -> Study:
    """Return the requested part of a study; all of it by default."""
    return replace(
        study,
        tasks=tuple(args.tasks.split(",")) if args.tasks else study.tasks,
        places=tuple(args.places.split(",")) if args.places else study.places,
        count=min(args.count, study.count) if args.count else study.count,
    )


def _arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", choices=tuple(STUDIES))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--tasks", metavar="NAMES", help="a subset of the study's tasks")
    parser.add_argument("--places", metavar="NAMES", help="places of the question: inside,after,next")
    parser.add_argument("--count", type=int, metavar="N", help="prompts per task")
    parser.add_argument("--slots", type=int, default=8, help="concurrent requests")
    parser.add_argument("--graphs", default=Options.graphs, help="off: compile nothing")
    parser.add_argument("--device", help="cpu (default) or cuda:0")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--estimate", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
