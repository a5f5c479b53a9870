"""Accuracy: the studies that docs/accuracy.md reports, each with its tasks, cells and number of prompts fixed here.

    python -m bench.accuracy                              what there is, and how far each is
    python -m bench.accuracy choosing-qwen --minutes 60   go on with one for an hour
    python -m bench.accuracy choosing-qwen --estimate     how long all that is left takes
    python -m bench.accuracy --page                       their tables into docs/accuracy.md

Answers are kept in bench/results/accuracy/NAME, without their texts: some quote data that are not ours to copy. Reports
are written to the cache folder. A study goes on where it was, on another machine too; its answers name the machines
that made them.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.perplexity import DATA
from bench.report import RESULTS, table
from ringkv.base.kv import SELECTORS, KVChoice
from ringkv.base.paths import cache_dir
from ringkv.cli.progress import watching
from ringkv.evaluation import journal
from ringkv.evaluation.cells import Cell, crossed
from ringkv.evaluation.evaluate import Study, evaluate
from ringkv.evaluation.report.page import row, write
from ringkv.evaluation.summary import figures, group_figures
from ringkv.plan.options import Options

FOLDER = RESULTS / "accuracy"
PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
BEGIN, END = "<!-- studies:begin -->", "<!-- studies:end -->"
QWEN, SMOLLM2 = "qwen2.5-coder-1.5b", "smollm2"
NOTHING = "Not yet: no study has answers. What is known so far is the needles in [performance.md](performance.md)."
POLICIES, BUDGETS = ("full", "streaming", "snapkv", "snapstream"), ("2x", "4x", "8x")
FOUND_EASILY = ("niah_single_2", "niah_multikey_1")


def ways_to_choose(budget: str) -> list[Cell]:
    """Each setting of the choice varied alone; full and the usual one first."""
    usual = KVChoice()

    def each() -> Iterator[KVChoice]:
        yield usual
        yield from (replace(usual, window=window) for window in (16, 32, 128))
        yield from (replace(usual, kernel=kernel) for kernel in (1, 7, 15, 31))
        yield from (replace(usual, kernel=kernel, pooling="max") for kernel in (5, 15, 31))
        yield replace(usual, domain="candidates")
        yield from (replace(usual, sinks=sinks) for sinks in (0, 64))
        yield from (replace(usual, recent=recent) for recent in (0.05, 0.5))
        yield from (replace(usual, select=name) for name in SELECTORS if name != usual.select)

    return [Cell(replace(usual, policy="full")), *(Cell(choice, budget) for choice in each())]


def layouts() -> list[Cell]:
    """Ours and the paper's, where a prompt fits whole and the answer is longer than what is left."""
    both = KVChoice(), KVChoice(elastic=False)
    return [
        Cell(KVChoice(policy="full")),
        *(Cell(choice, budget) for budget in ("192", "256", "384") for choice in both),
    ]


def served_ways() -> list[Cell]:
    """Each policy at each budget, and beside them the choice that looks at no query, which late questions favour."""
    keydiff = KVChoice(select="keydiff")
    return [*crossed(POLICIES, BUDGETS, KVChoice()), *(Cell(keydiff, budget) for budget in BUDGETS)]


ABOUT: Mapping[str, str] = {
    "choosing-qwen": "What chooses best: each setting varied alone, at a quarter of the prompt, Qwen2.5-Coder-1.5B",
    "choosing-smollm2": "What chooses best: the same on SmolLM2-135M, at half of shorter prompts",
    "layouts-qwen": "Our elastic layout and the paper's, on short problems with long answers, Qwen2.5-Coder-1.5B",
    "ruler-smollm2": "RULER on SmolLM2-135M, which is too small for most of it",
    "ruler-qwen": "RULER on Qwen2.5-Coder-1.5B",
    "longbench-qwen": "LongBench on Qwen2.5-Coder-1.5B",
    "wikitext": "Perplexity of what follows a compressed prefix, SmolLM2-135M",
}
STUDIES: Mapping[str, Study] = {
    "choosing-qwen": Study(QWEN, FOUND_EASILY, ways_to_choose("4x"), (4096,), ("inside", "after"), count=10),
    "choosing-smollm2": Study(SMOLLM2, FOUND_EASILY, ways_to_choose("2x"), (2048,), ("inside", "after"), count=20),
    "layouts-qwen": Study(QWEN, ("gsm8k",), layouts(), (2048,), count=40),
    "ruler-smollm2": Study(
        SMOLLM2, ("ruler",), crossed(POLICIES, BUDGETS, KVChoice()), (4096,), ("inside", "after"), count=10
    ),
    "ruler-qwen": Study(QWEN, ("ruler",), served_ways(), (4096,), ("inside", "after"), count=10),
    "longbench-qwen": Study(QWEN, ("longbench",), served_ways(), (8192,), count=10),
    "wikitext": Study(SMOLLM2, ("wikitext",), crossed(POLICIES, BUDGETS, KVChoice()), (2048, 4096, 7936), count=10),
}


def main() -> None:
    asked = _arguments()
    if asked.page:
        PAGE.write_text(with_studies(PAGE.read_text()))
        return
    if asked.study is None:
        print("\n".join(f"{name}: {_done(FOLDER / name):,} answers" for name in STUDIES))
        return
    study = replace(STUDIES[asked.study], data=asked.data if asked.data.is_dir() else None)
    folder = FOLDER / asked.study
    with watching() as tell:
        seconds = 0.0 if asked.estimate else 60 * asked.minutes
        for sentence in evaluate(study, Options(slots=asked.slots), folder, tell, seconds, keeps_texts=False):
            print(sentence)
    if not asked.estimate:
        print(shown(folder))
        print(write(folder, cache_dir() / "accuracy" / asked.study))


def shown(folder: Path) -> str:
    """The tables of a study's answers."""
    records = list(journal.read(folder / journal.NAME))
    head = ("task", "cache", "prompts", "score", "from full", "held")
    rows = [row(one) for one in (*group_figures(records), *figures(records))]
    return table(head, [(one.task, one.cell, str(one.prompts), one.mean, one.difference, one.kept) for one in rows])


def with_studies(page: str, folder: Path = FOLDER) -> str:
    """The same page with the tables of today between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    parts = [_section(name, folder / name) for name in STUDIES if _done(folder / name)]
    return f"{before}{BEGIN}\n{NOTHING if not parts else chr(10).join(parts)}\n{END}{after}"


def _section(name: str, folder: Path) -> str:
    """A study's heading, on what it was answered and how much of it, and its tables."""
    study, about = STUDIES[name], journal.about(folder / journal.NAME)
    records = list(journal.read(folder / journal.NAME))
    most = max(figure.count + figure.failed for figure in figures(records))
    made = "; ".join(f"{one['machine']}, ringkv {one['version']}" for one in about["sessions"])
    words = f"`python -m bench.accuracy {name}`: {study.count} prompts of each task and length were fixed beforehand"
    words += "." if most >= study.count else f", of which up to {most} are answered by now."
    return f"### {ABOUT[name]}\n\n{words} {about['model']}, weights {about['weights']}; {made}.\n\n{shown(folder)}\n"


def _done(folder: Path) -> int:
    path = folder / journal.NAME
    return len(list(journal.read(path))) if path.is_file() else 0


def _arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", choices=tuple(STUDIES))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--page", action="store_true")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
