"""models: the table of families, from the registry, their own descriptions and the plan's catalogue; and of clients."""

import inspect
import sys
from collections.abc import Sequence

from bench.results import ResultRow, figures, table
from ringkv.models.families.registry import FAMILIES, Read
from ringkv.plan.shapes import configurations


def models() -> str:
    """Return a row for each family: its architectures, and the sizes that `ringkv plan` knows."""
    names: dict[Read, list[str]] = {}
    for name, family in FAMILIES.items():
        names.setdefault(family.read, []).append(name)
    rows = [_row(read, architectures) for read, architectures in names.items()]
    return "\n".join(["| family | architectures | `ringkv plan` |", "|---|---|---|", *rows])


def _row(read: Read, names: Sequence[str]) -> str:
    about = (
        (inspect.getdoc(read) or inspect.getdoc(sys.modules[read.__module__]) or "")
        .partition("\n\n")[0]
        .replace("\n", " ")
        .removesuffix(".")
    )
    sizes = (size for size, raw in configurations().items() if raw["architectures"][0] in names)
    return f"| {about} | {', '.join(names)} | {', '.join(f'`{size}`' for size in sizes)} |"


def clients(rows: Sequence[ResultRow]) -> str:
    """Return the table of passed checks; it names the failed ones."""
    checks = figures(rows, "clients")
    lines = []
    for package in dict.fromkeys(one["package"] for one in checks):
        mine = [one for one in checks if one["package"] == package]
        failed = "; ".join(one["check"] for one in mine if not one["passed"])
        count = f"{sum(one['passed'] for one in mine)} of {len(mine)}"
        lines.append((package, f"{count}{f'; **failed**: {failed}' if failed else ''}"))
    return table(("client", "checks passed"), lines).replace("---:", "---")
