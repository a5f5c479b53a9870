"""table: the number of passed checks of each client."""

from collections.abc import Sequence

from bench.results import ResultRow, figures, table


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
