"""Results made up for tests."""

from collections.abc import Iterable, Sequence
from typing import Any

from bench.page.kept import Kept, Result
from bench.peers.cells import Cell


def cell(engine: str, prompt: int, requests: int, kept: int | None = None, **figures: Any) -> Cell:
    fields = {"weights": "bf16", "kept": prompt if kept is None else kept} | figures
    return Cell(engine=engine, prompt=prompt, requests=requests, **fields)


def result(figures: Iterable[dict[str, Any]]) -> Result:
    return Result({}, "a machine", {"torch": "2"}, "abc", "2026-01-01", tuple(figures))


def made(cells: Sequence[Cell] = (), model: str = "smollm2", **results: Iterable[dict[str, Any]]) -> Kept:
    return Kept({name: result(figures) for name, figures in results.items()}, {model: tuple(cells)})


def probes(bandwidth: float, matrix: float) -> dict[str, Any]:
    return {"kind": "probes", "reading": {"1": {"a way": bandwidth}}, "matrix": {"a product": matrix}}
