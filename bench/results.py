"""results: the one table that every benchmark appends to, and questions to it.

bench/results/measurements.jsonl holds one measurement a line:

    bench, machine                          which benchmark, on which kind of processor
    model, engine, prompt, requests, ...    the case: what was measured
    metric, value, unit, statistic          the measurement
    run, processor, versions, commit        when and with what; `run` begins with the date (UTC)

Rows of one run were measured side by side. Machines drift, so only such rows make a ratio.
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.metrics import METRICS
from ringkv.base.version import VERSION
from ringkv.machine import processor

RESULTS = Path(__file__).parent / "results"
TABLE = RESULTS / "measurements.jsonl"
UNITS = ("amx_bf16", "avx512_bf16")  # instructions that multiply bfloat16, fastest first
MAKERS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
PACKAGES = ("torch", "transformers")
MEASURED = ("metric", "value", "unit", "statistic")
ABOUT = ("run", "processor", "versions", "peers", "package", "commit", "said", "why")  # not part of the case
DIGITS = 6

Row = dict[str, Any]
Figure = Mapping[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def keep(
    bench: str,
    workload: Mapping[str, Any],
    figures: Sequence[Figure],
    shown: str,
    path: Path = TABLE,
    device: str | None = None,
) -> None:
    """Print a benchmark's table and append its figures. `device` names the machine if it is not this CPU."""
    about = provenance(device)
    append(path, rows(bench, workload, figures, about))
    settings = ", ".join(f"{name} {_worded(value)}" for name, value in workload.items())
    print(f"\n{shown}\n\n{settings}. {about['processor']}; {about['versions']}; commit {about['commit']}.")


def rows(bench: str, workload: Mapping[str, Any], figures: Iterable[Figure], about: Row) -> Iterator[Row]:
    """One row for each measurement; for a case without any, one whose metric and value are None.

    A figure's fields go before the workload's; lists and mappings are left out.
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


def append(path: Path, new: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({name: _rounded(value) for name, value in row.items()}, ensure_ascii=False) for row in new]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def read(path: Path = TABLE) -> list[Row]:
    """All rows, as they were appended."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def latest(table: Sequence[Row]) -> list[Row]:
    """Without runs that a later run of the same benchmark and machine has repeated in full."""
    runs: dict[tuple[str, str, str], set[frozenset[tuple[str, Any]]]] = {}
    for row in table:
        runs.setdefault(_run(row), set()).add(_case(row))
    stale = {
        old
        for old, cases in runs.items()
        if any(new[:2] == old[:2] and new[2] > old[2] and cases <= others for new, others in runs.items())
    }
    return [row for row in table if _run(row) not in stale]


def figures(table: Iterable[Row], bench: str, **columns: Any) -> list[Row]:
    """One mapping for each case of a benchmark: its columns, and its measurements by name.

    columns: values that the rows must have.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in table:
        if row["bench"] == bench and all(row.get(name) == value for name, value in columns.items()):
            figure = found.setdefault((*_run(row), _case(row) - {("metric", row["metric"])}), _without_measure(row))
            if row["metric"]:
                figure[row["metric"]] = row["value"]
    return list(found.values())


def provenance(device: str | None = None) -> Row:
    """The kind of machine, when, on what and with which versions."""
    ours = {"ringkv": VERSION, "python": platform.python_version()}
    versions = ours | {name: version(name) for name in PACKAGES if find_spec(name)}
    return {
        "machine": "cuda" if device else machine(),
        "run": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": device or described(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": commit(),
    }


def machine() -> str:
    """The kind of this processor: its maker, and the best of `UNITS` that it has."""
    maker = MAKERS.get(processor.cpuinfo().get("vendor_id", ""), "other")
    unit = next((unit for unit in UNITS if unit in processor.instructions()), "plain")
    return f"{maker}-{unit}"


def described() -> str:
    """Processor, its family (makers give one name to several), what multiplies there, and threads."""
    family = f" (family {processor.cpuinfo()['cpu family']})" if "cpu family" in processor.cpuinfo() else ""
    unit = next((unit for unit in UNITS if unit in processor.instructions()), torch.backends.cpu.get_cpu_capability())
    return f"{processor.name()}{family}, {unit}, {torch.get_num_threads()} threads"


def commit() -> str:
    """The commit that is checked out, with a "+" if our source or its benchmarks differ from it."""
    measured = ("src", "bench/*.py")
    return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", *measured) else "")


def _git(*words: str) -> str:
    """What git prints here; nothing without git or a repository."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def _run(row: Row) -> tuple[str, str, str]:
    return row["bench"], row["machine"], row["run"]


def _case(row: Row) -> frozenset[tuple[str, Any]]:
    """What was measured, the metric included."""
    return frozenset((name, value) for name, value in row.items() if name not in (*ABOUT, *MEASURED[1:]))


def _without_measure(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in MEASURED}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def _rounded(value: Any) -> Any:
    """Floats to so many digits, whole ones in full."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")


def _worded(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
