"""accuracy: run the studies that docs/accuracy.md reports; bench/studies.py defines those that can be continued.

    python -m bench.accuracy                              list the studies and their numbers of answers
    python -m bench.accuracy choosing-qwen --minutes 60   continue one for an hour
    python -m bench.accuracy choosing-qwen --estimate     estimate the remaining time
    python -m bench.accuracy --scores                     write the scores of all answers to accuracy.csv

Scored answers are stored in bench/results/accuracy/NAME.jsonl.xz without their texts, because some quote data that we
may not copy. While a study runs, its journal and report are in the cache folder. A study resumes where it stopped,
also on another machine; the journal lists the machines.
"""

import argparse
import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from bench.answers import about, names, pack, records, unpack
from bench.arguments import command_line
from bench.data import DATA
from bench.results import RESULTS, table
from bench.studies import OPTIONS_OF, STUDIES
from ringkv.evaluation.evaluate import evaluate
from ringkv.evaluation.journal import Record
from ringkv.evaluation.report import HEAD, row, sections, write
from ringkv.evaluation.summary import CellScore, group_scores, task_scores
from ringkv.llm.show_progress import show_progress
from ringkv.machine.folders import cache_dir
from ringkv.plan.options import Options

SCORES = RESULTS / "accuracy.csv"
COLUMNS = (
    "study", "model", "task", "question", "length", "cache", "prompts", "failed", "score", "difference", "low", "high",
    "kept", "answer_tokens", "ring_wraps",
)  # fmt: skip


def main() -> None:
    args = _arguments()
    if args.scores:
        SCORES.write_text(scores(names()), encoding="utf-8")
        return
    if args.study is None:
        for name, study in STUDIES.items():
            caches = ", ".join(cell.label for cell in study.cells)
            caption = f"{study.model}, {', '.join(study.tasks)}, question {', '.join(study.places)}, under {caches}"
            print(f"{name}: {len(records(name)):,} answers. {caption}")
        return
    study = replace(STUDIES[args.study], data=args.data if args.data.is_dir() else None)
    folder = cache_dir() / "accuracy" / args.study
    options = Options(slots=args.slots, graphs=args.graphs, device=args.device, **OPTIONS_OF.get(args.study, {}))
    unpack(args.study, folder)
    try:
        with show_progress() as report:
            seconds = 0.0 if args.estimate else 60 * args.minutes
            for sentence in evaluate(study, options, folder, report, seconds, keeps_texts=False):
                print(sentence)
    finally:
        pack(args.study, folder)
    if not args.estimate:
        print(means(records(args.study)))
        print(write(folder, sections(folder)))


def means(answers: Sequence[Record]) -> str:
    """Return the table of means over a study's tasks, or the one task's figures."""
    return table(HEAD, list(map(row, group_scores(answers) or task_scores(answers))))


def scores(studies: Sequence[str]) -> str:
    """Return a CSV with a line for each task of each study under each cache, and for each mean over a study's tasks.

    Scores are percent, or perplexity for wikitext. `difference` is the difference from the full cache on the same
    prompts, with the ends of its 95% interval: in percent points, or in percent of the perplexity.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for study in studies:
        answers, model = records(study), about(study)["model"]
        lines.writerows((study, model, *_line(score)) for score in (*group_scores(answers), *task_scores(answers)))
    return text.getvalue()


def _line(score: CellScore) -> tuple[object, ...]:
    difference = score.over_full
    ends = (difference.low, difference.high) if difference and isfinite(difference.low) else ("", "")
    return (
        score.task, score.place, score.length or "", score.cell, score.count, score.failed, _rounded(score.mean),
        _rounded(difference.mean if difference else None), *map(_rounded, ends),
        _rounded(score.kept), _rounded(score.output_tokens), _rounded(score.ring_wraps),
    )  # fmt: skip


def _rounded(value: float | str | None) -> float | str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else value or ""


def _arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("study", nargs="?", choices=tuple(STUDIES))
    parser.add_argument("--scores", action="store_true", help="write accuracy.csv")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--slots", type=int, default=8, help="concurrent requests")
    parser.add_argument("--graphs", default=Options.graphs, help="off: compile nothing")
    parser.add_argument("--device", help="cpu (default) or cuda:0")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--estimate", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
