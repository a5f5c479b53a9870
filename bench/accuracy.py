"""Accuracy: answer the studies that docs/accuracy.md reports; what each asks is in bench/studies.py.

    python -m bench.accuracy                              what there is, and how far each is
    python -m bench.accuracy choosing-qwen --minutes 60   go on with one for an hour
    python -m bench.accuracy choosing-qwen --estimate     how long all that is left takes
    python -m bench.accuracy ruler-qwen --tasks vt,cwe --places inside --count 5    a part of it first
    python -m bench.accuracy --page                       their tables into docs/accuracy.md and accuracy-tasks.md

Answers are kept in bench/results/accuracy/NAME, without their texts: some quote data that are not ours to copy. Reports
are written to the cache folder. A study goes on where it was, on another machine too; its answers name the machines
that made them.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.data import DATA
from bench.page.studies import FOLDER, PAGE, TASKS_PAGE, done, means, tasks_page, with_studies
from bench.studies import STUDIES
from ringkv.base.paths import cache_dir
from ringkv.evaluation.evaluate import Study, evaluate
from ringkv.evaluation.report.page import write
from ringkv.llm.watching import watching
from ringkv.plan.options import Options


def main() -> None:
    asked = _arguments()
    if asked.page:
        PAGE.write_text(with_studies(PAGE.read_text()))
        TASKS_PAGE.write_text(tasks_page())
        return
    if asked.study is None:
        print("\n".join(f"{name}: {done(FOLDER / name):,} answers" for name in STUDIES))
        return
    study = replace(_part(STUDIES[asked.study], asked), data=asked.data if asked.data.is_dir() else None)
    folder = FOLDER / asked.study
    with watching() as tell:
        seconds = 0.0 if asked.estimate else 60 * asked.minutes
        for sentence in evaluate(study, Options(slots=asked.slots), folder, tell, seconds, keeps_texts=False):
            print(sentence)
    if not asked.estimate:
        print(means(folder))
        print(write(folder, cache_dir() / "accuracy" / asked.study))


def _part(study: Study, asked: argparse.Namespace) -> Study:
    """What of a study is asked for; all of it where nothing is said."""
    return replace(
        study,
        tasks=tuple(asked.tasks.split(",")) if asked.tasks else study.tasks,
        places=tuple(asked.places.split(",")) if asked.places else study.places,
        count=min(asked.count, study.count) if asked.count else study.count,
    )


def _arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", choices=tuple(STUDIES))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--tasks", metavar="NAMES", help="of the study's, in this run")
    parser.add_argument("--places", metavar="NAMES", help="of the question, in this run: inside,after")
    parser.add_argument("--count", type=int, metavar="N", help="prompts of each task, in this run")
    parser.add_argument("--slots", type=int, default=8, help="answers in flight")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--page", action="store_true")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
