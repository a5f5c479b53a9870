"""report: write the measured figures into README.md and docs/: tables and plots.

    python -m bench.report            write all
    python -m bench.report device     print these tables

The report reads bench/results only and needs no model and no network. It replaces only the text between
`<!-- report:NAME -->` and `<!-- /report -->`. The tables of finished studies, between `<!-- recorded:NAME -->` and
`<!-- /recorded -->`, are data, which nothing writes again.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from bench import pairs
from bench.arguments import command_line
from bench.data import REPOSITORY
from bench.report import accuracy, peers, traffic
from bench.report.device import device
from bench.report.faults import faults
from bench.report.speculation import draft_models, speculation
from bench.results import TABLE, ResultRow, figures, latest, read, table
from ringkv.models.families.registry import FAMILIES, Read
from ringkv.plan.shapes import configurations

DOCS = REPOSITORY / "docs"
PAGES = (REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md")))
BLOCK = re.compile(r"(<!-- report:(\w+) -->\n).*?(<!-- /report -->)", re.DOTALL)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"a table to print: {', '.join(tables())}")
    args = parser.parse_args()
    if unknown := set(args.tables) - tables().keys():
        parser.error(f"no table {', '.join(sorted(unknown))}; --help lists them")
    if args.tables:
        print("\n\n".join(tables()[name]() for name in args.tables))
        return
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(REPOSITORY)}")


@cache
def tables() -> Mapping[str, Callable[[], str]]:
    """Return what makes each table, by name."""
    rows = latest(read(TABLE))
    means = accuracy.means()
    return {
        "engines": partial(peers.engines, rows),
        "by_engine": partial(peers.by_engine, rows),
        "perplexity": partial(peers.perplexity, rows),
        "traffic": partial(traffic.traffic, rows),
        "faults": partial(faults, rows),
        "clients": partial(clients, rows),
        "device": partial(device, rows),
        "speculation": partial(speculation, rows),
        "draft_models": partial(draft_models, rows),
        "scores": partial(accuracy.summary, means),
        "models": models,
        "pairs": pairs.table,
    }


def files() -> Mapping[Path, str]:
    """Return the contents of every file that the report writes."""
    rows = latest(read(TABLE))
    return {
        DOCS / "equal-memory.svg": peers.equal_memory(rows),
        DOCS / "throughput.svg": peers.throughput(rows),
        DOCS / "traffic.svg": traffic.picture(rows),
        **{page: filled(page.read_text(encoding="utf-8"), tables()) for page in PAGES},
    }


def filled(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    return BLOCK.sub(lambda block: f"{block[1]}{blocks[block[2]]()}\n{block[3]}", page)


def models() -> str:
    """Return a row for each family: its architectures, and the sizes that `ringkv plan` knows."""
    names: dict[Read, list[str]] = {}
    for name, family in FAMILIES.items():
        names.setdefault(family.read, []).append(name)
    rows = []
    for family, architectures in names.items():
        doc = inspect.getdoc(family) or inspect.getdoc(sys.modules[family.__module__]) or ""
        about = doc.partition("\n\n")[0].replace("\n", " ").removesuffix(".")
        sizes = (size for size, raw in configurations().items() if raw["architectures"][0] in architectures)
        rows.append((about, ", ".join(architectures), ", ".join(f"`{size}`" for size in sizes)))
    return table(("family", "architectures", "`ringkv plan`"), rows).replace("---:", "---")


def clients(rows: Sequence[ResultRow]) -> str:
    """Return the table of passed checks; it names the failed ones."""
    checks = figures(rows, "clients")
    lines = []
    for package in dict.fromkeys(check["package"] for check in checks):
        mine = [check for check in checks if check["package"] == package]
        failed = "; ".join(check["check"] for check in mine if not check["passed"])
        count = f"{sum(check['passed'] for check in mine)} of {len(mine)}"
        lines.append((package, f"{count}{f'; **failed**: {failed}' if failed else ''}"))
    return table(("client", "checks passed"), lines).replace("---:", "---")


if __name__ == "__main__":
    main()
