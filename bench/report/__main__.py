"""report: write the measured figures into README.md and docs/: tables, plots, and the data file of all scores.

    python -m bench.report                    write all
    python -m bench.report targets sampling   print these tables, also those that no page shows

The report reads bench/results only and needs no model and no network. It replaces only the text between
`<!-- report:NAME -->` and `<!-- /report -->`.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from bench.clients.table import clients
from bench.report import accuracy, decoding, speed, traffic
from bench.report import slots as slot_formats
from bench.report.claims import StudyRecords, claims_table, unmet_claims
from bench.report.deployments import deployments
from bench.report.device import device
from bench.report.faults import faults
from bench.report.kv_rotation import kv_rotation
from bench.report.kv_steps import kv_steps
from bench.report.later import later
from bench.report.models import models
from bench.report.ranks import rank_answers, ranks
from bench.report.recall import prefetch, recall
from bench.report.roles import roles
from bench.report.sampling import sampling
from bench.report.selections import selections
from bench.report.targets import missed_targets, targets_table
from bench.report.trained import trained
from bench.results import RESULTS, TABLE, ResultRow, latest, read

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
NAMES = ("performance", "accuracy", "policies", "serving", "models", "distributed", "gpu", "formats")
PAGES = (
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in NAMES),
)
BLOCK = re.compile(r"(<!-- report:(\w+) -->\n).*?(<!-- /report -->)", re.DOTALL)


class Measured(NamedTuple):
    """All that the report reads: the newest measurements, the answers of each study, and their means."""

    rows: Sequence[ResultRow]
    answers: StudyRecords
    means: accuracy.Groups


def main() -> None:
    if wanted := _arguments().tables:
        print("\n\n".join(tables()[name]() for name in wanted))
        return
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


@cache
def measured() -> Measured:
    answers = accuracy.answers()
    return Measured(latest(read(TABLE)), answers, accuracy.groups(answers))


def tables() -> Mapping[str, Callable[[], str]]:
    """Return what makes each table, by name."""
    rows, answers, means = measured()
    return {
        "engines": partial(speed.engines, rows, accuracy.scores(means)),
        "by_engine": partial(speed.by_engine, rows),
        "perplexity": partial(speed.perplexity, rows),
        "speculation": partial(decoding.speculation, rows),
        "kv_format": partial(decoding.kv_format, rows),
        "kv_steps": partial(kv_steps, rows),
        "kv_rotation": partial(kv_rotation, rows),
        "recall": partial(recall, rows),
        "prefetch": partial(prefetch, rows),
        "selections": partial(selections, rows),
        "sampling": partial(sampling, rows),
        "slots": partial(slot_formats.slots, rows, answers),
        "chains": partial(slot_formats.chains, answers),
        "faults": partial(faults, rows),
        "traffic": partial(traffic.traffic, rows),
        "targets": partial(targets_table, rows),
        "missed": partial(missed_targets, rows),
        "clients": partial(clients, rows),
        "models": models,
        "ranks": partial(ranks, rows),
        "rank_answers": partial(rank_answers, rows),
        "roles": partial(roles, rows),
        "deployments": deployments,
        "device": partial(device, rows),
        "scores": partial(accuracy.summary, means),
        "claims": partial(claims_table, answers),
        "unmet": partial(unmet_claims, answers),
        "later": partial(later, answers, means),
        "trained": partial(trained, answers),
    }


def files() -> Mapping[Path, str]:
    """Return the contents of every file that the report writes."""
    rows, answers, means = measured()
    blocks = tables()
    return {
        DOCS / "throughput.svg": speed.throughput(rows),
        DOCS / "accuracy.svg": accuracy.picture(means),
        DOCS / "traffic.svg": traffic.picture(rows),
        DOCS / "formats.svg": slot_formats.picture(rows, answers),
        RESULTS / "accuracy.csv": accuracy.data(answers, means),
        **{page: filled(page.read_text(encoding="utf-8"), blocks) for page in PAGES},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"a table to print: {', '.join(tables())}")
    args = parser.parse_args()
    if unknown := set(args.tables) - tables().keys():
        parser.error(f"no table {', '.join(sorted(unknown))}; --help lists them")
    return args


def filled(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    return BLOCK.sub(lambda found: f"{found[1]}{blocks[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    main()
