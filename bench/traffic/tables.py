"""tables: the printed table."""

from collections.abc import Sequence

from bench.results import table
from bench.traffic.figures import TrafficCell

HEAD = (
    "load",
    "engine",
    "tokens/s",
    "goodput/s",
    "of sent",
    "first token p50",
    "p99",
    "per token p50",
    "p99",
    "longest gap",
    "gap p99",
    "sent",
    "failed",
    "clients' CPU",
)


def shown(cells: Sequence[TrafficCell]) -> str:
    ordered = sorted(cells, key=lambda cell: (cell.model, cell.workload, cell.clients or 0, cell.per_minute or 0))
    return table(HEAD, [_row(cell) for cell in ordered])


def load_name(cell: TrafficCell) -> str:
    how = f"{cell.clients} clients" if cell.clients else f"{(cell.per_minute or 0) / 60:.2f}/s"
    return f"{cell.workload}{f' / {cell.shrink}' if cell.shrink > 1 else ''}, {how}"


def _row(cell: TrafficCell) -> tuple[str, ...]:
    if cell.tokens_per_s is None:
        return (load_name(cell), cell.engine, cell.why or "", *[""] * (len(HEAD) - 3))
    cpu = (cell.clients_cpu_s or 0) / (cell.served_s or 1)
    return (
        load_name(cell),
        cell.engine,
        f"{cell.tokens_per_s:,.1f}",
        f"{cell.goodput or 0:.2f}",
        f"{cell.good_share or 0:.0%}",
        _seconds(cell.ttft_s),
        _seconds(cell.ttft_p99_s),
        _ms(cell.tpot_s),
        _ms(cell.tpot_p99_s),
        _ms(cell.gap_s),
        _ms(cell.gap_p99_s),
        f"{cell.sent_requests}",
        f"{cell.failed_requests}" + (f" ({cell.why})" if cell.why else ""),
        f"{cpu:.0%} of a core",
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{1e3 * value:.0f} ms"
