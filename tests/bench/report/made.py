"""Made-up rows of the table of results."""

from typing import Any

from bench.report.peers import FIRST
from bench.results import ResultRow, rows

ABOUT = {"machine": FIRST, "processor": "p", "versions": "v", "commit": "c"}


def measured(bench: str, *figures: dict[str, Any], run: str = "1", machine: str = FIRST) -> list[ResultRow]:
    return list(rows(bench, {}, figures, ABOUT | {"run": run, "machine": machine}))


def cell(engine: str, prompt: int, requests: int, kept: int | None = None, **figures: Any) -> dict[str, Any]:
    fields = {"model": "smollm2", "weights": "bf16", "protocol": "same", "kept": prompt if kept is None else kept}
    return {"engine": engine, "prompt": prompt, "requests": requests, **fields, **figures}


def cells(*found: dict[str, Any], run: str = "1") -> list[ResultRow]:
    return measured("peers", *found, run=run)
