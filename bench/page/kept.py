"""Kept: what the benchmarks left in a folder of results/, read back. Nothing here needs a model or a network."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.cells import Cell, from_figures

Figure = Mapping[str, Any]
SIXTEEN = ("bf16", "f16", "fp16")  # what cells call weights of 16 bits


@dataclass(frozen=True)
class Result:
    """One benchmark's JSON."""

    workload: Mapping[str, Any]
    machine: str
    versions: Mapping[str, str]
    commit: str
    date: str
    figures: tuple[Figure, ...]
    shown: str = ""  # its table

    def of(self, kind: str) -> list[Figure]:
        return [figure for figure in self.figures if figure.get("kind") == kind]

    @property
    def caption(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.machine}; {versions}; commit {self.commit}, {self.date}"


@dataclass(frozen=True)
class Kept:
    """All results by name, and the peers' cells by model."""

    results: Mapping[str, Result]
    cells: Mapping[str, tuple[Cell, ...]]

    def figures(self, name: str, kind: str | None = None) -> list[Figure]:
        """Of the results of this name, or that begin with it, and one kind where they have kinds."""
        found = [result for stem, result in self.results.items() if stem == name or stem.startswith(f"{name}-")]
        return [figure for result in found for figure in (result.figures if kind is None else result.of(kind))]


def kept(*folders: Path) -> Kept:
    """What lies in these folders."""
    results = {path.stem: _read(path) for folder in folders for path in sorted(folder.glob("*.json"))}
    cells: dict[str, tuple[Cell, ...]] = {}
    for name, result in results.items():
        if name.startswith("peers") and (model := result.workload.get("model")):
            cells[model] = cells.get(model, ()) + tuple(from_figures(result.figures, name))
    return Kept(results, cells)


def _read(path: Path) -> Result:
    found = json.loads(path.read_text(encoding="utf-8"))
    fields = {name: found[name] for name in ("workload", "machine", "versions", "commit", "date")}
    shown = path.with_suffix(".md").read_text(encoding="utf-8")
    return Result(**fields, figures=tuple(found["figures"]), shown=shown)
