"""traffic: servers under the same load: a table of every load, and goodput against the offered rate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from bench.report.chart import Panel, Point, chart
from bench.report.machine import MACHINES, MODELS, machine_table
from bench.results import ResultRow, cells_of, figures, newest
from bench.traffic.figures import TrafficCell

OURS, RATE = "ringkv", "tokens_per_s"
FAMILIES: Mapping[str, Sequence[str]] = {
    OURS: (OURS,),
    "vLLM": ("vllm",),
    "llama.cpp": ("llama.cpp", "llama.cpp-unified"),
    "OpenVINO": ("openvino",),
}
HEAD = ("model", "machine", "load", "", *FAMILIES, "ringkv over the best other")
TITLE = "Requests per second that meet the objective, against requests offered per second"
ORDER = list(MODELS)


def traffic(rows: Sequence[ResultRow]) -> str:
    """Return the table: throughput and the slowest first tokens if clients wait; the best goodput of arrivals."""
    lines = []
    for (model, machine, workload, shrink, clients), group in groupby(_cells(rows), _load):
        cells = list(group)
        name = f"{workload}{f', lengths / {shrink}' if shrink > 1 else ''}"
        case = (MODELS[model], MACHINES[machine], f"{name}, {clients} clients" if clients else name)
        if clients:
            rates = {family: _best(cells, members, RATE) for family, members in FAMILIES.items()}
            lines.append((*case, "tokens/s", *_shown(rates, "{:,.0f}"), _over(rates)))
            firsts = {family: _first(cells, members) for family, members in FAMILIES.items()}
            lines.append((*case, "first token, p99", *_shown(firsts, "{:.2f} s"), ""))
        else:
            rates = {family: _best(cells, members, "goodput") for family, members in FAMILIES.items()}
            lines.append((*case, "best goodput, requests/s", *_shown(rates, "{:.2f}"), _over(rates)))
    return machine_table(HEAD, lines)


def picture(rows: Sequence[ResultRow]) -> str:
    """Return a chart with a panel for each model and workload that was offered at several rates."""
    return chart(TITLE, list(_panels(cell for cell in _cells(rows) if cell.per_minute)))


def _panels(offered: Iterable[TrafficCell]) -> Iterator[Panel]:
    for (model, machine, workload, shrink, _), group in groupby(offered, _load):
        cells = list(group)
        rates = sorted({cell.per_minute / 60 for cell in cells if cell.per_minute})
        if len(rates) < 2 or not any(cell.goodput for cell in cells):
            continue  # no line
        lines = {family: _line(cells, members) for family, members in FAMILIES.items()}
        name = f"{workload}{f' / {shrink}' if shrink > 1 else ''}"
        ticks = {rate: f"{rate:g}" for rate in rates}
        yield Panel(f"{MODELS[model]}, {name} ({MACHINES[machine]})", lines, ticks, "offered, requests/s")


def _line(cells: Sequence[TrafficCell], members: Sequence[str]) -> list[Point]:
    best: dict[int, float] = {}
    for cell in cells:
        if cell.engine in members and cell.per_minute and cell.goodput is not None:
            best[cell.per_minute] = max(best.get(cell.per_minute, 0.0), cell.goodput)
    return [Point(per_minute / 60, goodput) for per_minute, goodput in sorted(best.items())]


def _cells(rows: Sequence[ResultRow]) -> list[TrafficCell]:
    """Return the cells of the newest run of each load, in the order of models and loads."""
    every = [asdict(cell) for cell in cells_of(TrafficCell, figures(rows, "traffic"))]
    kept = cells_of(TrafficCell, newest(every, "model", "machine", "workload", "shrink", "clients"))
    return sorted(kept, key=lambda cell: (ORDER.index(cell.model), *_load(cell)[1:]))


def _load(cell: TrafficCell) -> tuple[str, str, str, int, int]:
    """Return what is one row of the table; all rates of a workload are one."""
    return cell.model, cell.machine, cell.workload, cell.shrink, cell.clients or 0


def _best(cells: Sequence[TrafficCell], members: Sequence[str], metric: str) -> float | None:
    return max((value for cell in _of(cells, members) if (value := getattr(cell, metric)) is not None), default=None)


def _first(cells: Sequence[TrafficCell], members: Sequence[str]) -> float | None:
    """Return the 99th percentile of the first tokens, of the setting with the highest throughput."""
    fastest = max(_of(cells, members), key=lambda cell: cell.tokens_per_s or 0, default=None)
    return fastest.ttft_p99_s if fastest else None


def _of(cells: Sequence[TrafficCell], members: Sequence[str]) -> list[TrafficCell]:
    return [cell for cell in cells if cell.engine in members]


def _shown(values: Mapping[str, float | None], form: str) -> list[str]:
    return ["" if value is None else form.format(value) for value in values.values()]


def _over(values: Mapping[str, float | None]) -> str:
    """Return our value over the best other's."""
    ours = values[OURS]
    best = max((value for family, value in values.items() if family != OURS and value), default=None)
    return "" if ours is None or best is None else f"{ours / best:.2f}x"
