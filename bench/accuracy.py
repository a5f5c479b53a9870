"""Accuracy: answer the studies that docs/accuracy.md reports; bench/studies.py says what each of them asks.

    python -m bench.accuracy                              every study, and how many answers it has
    python -m bench.accuracy choosing-qwen --minutes 60   continue one for an hour
    python -m bench.accuracy choosing-qwen --estimate     how long the rest of it takes
    python -m bench.accuracy ruler-qwen --tasks vt,cwe --places inside --count 5    a part of it first
    python -m bench.report                                the results into docs/

Answers are kept in bench/results/accuracy/NAME.jsonl.xz, without their texts: some quote data that are not ours to
copy. While a study runs, its journal and its HTML report are in the cache folder. A study resumes where it stopped, on
another machine too; the journal names the machines.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.answers import pack, records, unpack
from bench.data import DATA
from bench.results import table
from bench.studies import ABOUT, STUDIES
from ringkv.evaluation.evaluate import Study, evaluate
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.page import HEAD, row, write
from ringkv.evaluation.summary import figures, group_figures
from ringkv.llm.show_progress import show_progress
from ringkv.machine.paths import cache_dir
from ringkv.plan.options import Options


def main() -> None:
    asked = _arguments()
    if asked.study is None:
        print("\n".join(f"{name}: {len(records(name)):,} answers. {ABOUT[name]}" for name in STUDIES))
        return
    study = replace(_part(STUDIES[asked.study], asked), data=asked.data if asked.data.is_dir() else None)
    folder = cache_dir() / "accuracy" / asked.study
    unpack(asked.study, folder)
    try:
        _run(study, folder, asked)
    finally:
        pack(asked.study, folder)
    if not asked.estimate:
        print(means(records(asked.study)))
        print(write(folder))


def _run(study: Study, folder: Path, asked: argparse.Namespace) -> None:
    with show_progress() as tell:
        seconds = 0.0 if asked.estimate else 60 * asked.minutes
        for sentence in evaluate(study, Options(slots=asked.slots), folder, tell, seconds, keeps_texts=False):
            print(sentence)


def means(answers: Sequence[Record]) -> str:
    """The means over a study's tasks; of a study with one task, that task's."""
    return table(HEAD, [row(one).cells for one in group_figures(answers) or figures(answers)])


def _part(study: Study, asked: argparse.Namespace) -> Study:
    """The requested part of a study; all of it by default."""
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
    parser.add_argument("--tasks", metavar="NAMES", help="some of the study's tasks")
    parser.add_argument("--places", metavar="NAMES", help="of the question: inside,after")
    parser.add_argument("--count", type=int, metavar="N", help="prompts of each task")
    parser.add_argument("--slots", type=int, default=8, help="answers in flight")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--estimate", action="store_true")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
