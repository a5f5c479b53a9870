"""results: the table that every benchmark appends to, and queries on it.

bench/results/measurements.jsonl holds one measurement a line:

    bench, machine                          which benchmark, on which kind of processor
    model, engine, prompt, requests, ...    the case: what was measured
    metric, value, unit, statistic          the measurement
    run, processor, versions, commit        when and with what; `run` begins with the date (UTC)

Rows of one run were measured side by side. Machines drift, so only such rows make a ratio.
"""

import json
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import torch

from bench.metrics import METRICS
from ringkv.base.version import VERSION
from ringkv.machine import processor

RESULTS = Path(__file__).parent / "results"
TABLE = RESULTS / "measurements.jsonl"
UNITS = ("amx_bf16", "avx512_bf16")  # instruction sets that multiply bfloat16, fastest first
MAKERS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
MEASURED = ("metric", "value", "unit", "statistic")
ABOUT = ("run", "processor", "versions", "peers", "package", "commit", "said", "why")  # not part of the case
DIGITS = 6

Cell = TypeVar("Cell")
ResultRow = dict[str, Any]
Figure = Mapping[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    first, *others = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join((first, "|---|" + "---:|" * (len(head) - 1), *others))


def keep(
    bench: str,
    workload: Mapping[str, Any],
    figures: Sequence[Figure],
    shown: str,
    path: Path = TABLE,
    device: str | None = None,
) -> None:
    """Print a benchmark's table and append its figures. `device` is the name of a machine other than this CPU."""
    about = provenance(device)
    append(path, rows(bench, workload, figures, about))
    texts = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in workload.items()}
    settings = ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in texts.items())
    print(f"\n{shown}\n\n{settings}. {about['processor']}; {about['versions']}; commit {about['commit']}.")


def rows(bench: str, workload: Mapping[str, Any], figures: Iterable[Figure], about: ResultRow) -> Iterator[ResultRow]:
    """Yield one row per measurement. A case without measurements yields one row whose metric and value are None.

    A figure's fields override the workload's. Lists and mappings are left out.
    """
    for figure in figures:
        fields = {name: value for name, value in {**workload, **figure}.items() if _is_scalar(value)}
        case = {name: value for name, value in fields.items() if name not in METRICS}
        assert not any(isinstance(case[name], float) for name in case.keys() - workload.keys()), f"no metric: {case}"
        measured = [name for name in fields if name in METRICS] or [None]
        for name in measured:
            unit, statistic = METRICS[name] if name else (None, None)
            value = {"metric": name, "value": fields.get(name), "unit": unit, "statistic": statistic}
            yield {"bench": bench, "machine": about["machine"], **case, **value, **about}


def fields_of(cell: Any) -> ResultRow:
    """Return the measured fields of a cell, as a figure."""
    return {name: value for name, value in asdict(cell).items() if value not in (None, "")}


def cells_of(cell: type[Cell], figures: Iterable[Figure]) -> list[Cell]:
    """Return cells, or other dataclasses, from figures of the table. Fields that they do not have are dropped."""
    known = {field.name for field in fields(cell)}
    return [cell(**{name: value for name, value in figure.items() if name in known}) for figure in figures]


def append(path: Path, new: Iterable[ResultRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({name: _rounded(value) for name, value in row.items()}, ensure_ascii=False) for row in new]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def read(path: Path = TABLE) -> list[ResultRow]:
    """Return all rows in the order they were appended."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def latest(table: Sequence[ResultRow]) -> list[ResultRow]:
    """Drop each run whose cases have all been repeated by one later run of the same benchmark and machine."""
    runs: dict[tuple[str, str, str], set[frozenset[tuple[str, Any]]]] = {}
    for row in table:
        runs.setdefault(_run(row), set()).add(_case(row))
    stale = {
        old
        for old, cases in runs.items()
        if any(new[:2] == old[:2] and new[2] > old[2] and cases <= others for new, others in runs.items())
    }
    return [row for row in table if _run(row) not in stale]


def figures(table: Iterable[ResultRow], bench: str, **columns: Any) -> list[ResultRow]:
    """Return one mapping per case of a benchmark: its columns, and its measurements by name.

    columns: values that the rows must have.
    """
    cases: dict[tuple[Any, ...], ResultRow] = {}
    for row in table:
        if row["bench"] == bench and columns.items() <= row.items():
            about = {name: value for name, value in row.items() if name not in MEASURED}
            figure = cases.setdefault((*_run(row), _case(row) - {("metric", row["metric"])}), about)
            if row["metric"]:
                figure[row["metric"]] = row["value"]
    return list(cases.values())


def newest(figures: Sequence[ResultRow], *columns: str) -> list[ResultRow]:
    """Keep the figures of the newest run for each combination of values of these columns.

    `latest` keeps an older run whose workload differs in any setting, such as the number of tokens.
    """
    key = itemgetter(*columns)
    runs: dict[Any, str] = {}
    for figure in figures:
        runs[key(figure)] = max(runs.get(key(figure), ""), figure["run"])
    return [figure for figure in figures if figure["run"] == runs[key(figure)]]


def provenance(device: str | None = None) -> ResultRow:
    """Return the columns that identify a run: kind of machine, time, processor, versions and commit."""
    versions = {"ringkv": VERSION, "python": platform.python_version(), "torch": torch.__version__.partition("+")[0]}
    return {
        "machine": "cuda" if device else machine(),
        "run": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": device or described(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": commit(),
    }


def machine() -> str:
    """Return the kind of this processor: its maker, and the fastest of `UNITS` that it has."""
    return f"{MAKERS.get(processor.cpuinfo().get('vendor_id', ''), 'other')}-{_unit('plain')}"


def described() -> str:
    """Return processor name, family, matrix instructions and threads. One name may cover several families."""
    family = f" (family {processor.cpuinfo()['cpu family']})" if "cpu family" in processor.cpuinfo() else ""
    unit = _unit(torch.backends.cpu.get_cpu_capability())
    return f"{processor.name()}{family}, {unit}, {torch.get_num_threads()} threads"


def _unit(other: str) -> str:
    return next((unit for unit in UNITS if unit in processor.instructions()), other)


def commit() -> str:
    """Return the checked-out commit, with a "+" if src or the benchmarks have uncommitted changes."""
    return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "src", "bench/*.py") else "")


def children_seconds() -> float:
    """Return the CPU time of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _git(*arguments: str) -> str:
    """Return git's output; empty without git or a repository."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def _run(row: ResultRow) -> tuple[str, str, str]:
    return row["bench"], row["machine"], row["run"]


def _case(row: ResultRow) -> frozenset[tuple[str, Any]]:
    """Return the columns that say what was measured, including the metric."""
    return frozenset((name, value) for name, value in row.items() if name not in (*ABOUT, *MEASURED[1:]))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def _rounded(value: Any) -> Any:
    """Round floats to `DIGITS` significant digits; whole numbers stay exact."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")
