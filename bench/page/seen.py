"""Seen: the rates that engines' own speeds imply. A floor above a time that somebody reached would be no floor."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.page.kept import SIXTEEN, Figure, Kept
from bench.page.models import MODELS, entry_bytes
from bench.peers.cells import Cell
from bench.peers.engines import ENGINES
from ringkv.bench import floor
from ringkv.bench.floor import Need, Rates
from ringkv.bench.probe import Ceiling

# What cells call weights -> what `floor` calls them; GGUF's blocks have a few scales more, which is left out.
PRECISION: Mapping[str, str] = {
    "bf16": "bfloat16",
    "f16": "bfloat16",
    "fp16": "bfloat16",
    "int8": "int8",
    "q8_0": "int8",
    "int4": "int4",
    "q4_0": "int4",
}
SPARSE = ("openvino-xattention", "openvino-trishape")  # compute less than causal attention in prefill


@dataclass(frozen=True)
class Seen:
    """One engine's own speed over work that moves so many bytes."""

    engine: str
    bytes: float
    rates: Rates


def step_need(model: str, cell: Cell) -> Need:
    """What a decode step of the cell must move and compute, by its own weights and cache."""
    share = ENGINES[cell.engine].shares(MODELS[model].head_dim) if cell.engine in ENGINES else 1.0
    entry = round(entry_bytes(model) * share)
    return floor.step(MODELS[model], cell.requests, cell.kept, entry, PRECISION[cell.weights])


def prefill_need(model: str, cell: Cell) -> Need:
    return floor.prefill(MODELS[model], cell.prompt, entry_bytes(model), PRECISION[cell.weights])


def seen(kept: Kept) -> list[Seen]:
    """Every engine's in every cell, and our own beside the probes."""
    implied = [one for model, cells in kept.cells.items() if model in MODELS for one in _implied(model, cells)]
    return [*implied, *map(_ours, kept.figures("limits", "speed"))]


def _ours(speed: Figure) -> Seen:
    amount, taken = speed["need_bytes"], speed["seconds"]
    return Seen("ringkv", amount, Rates(amount / taken, speed["need_operations"] / taken))


def _implied(model: str, cells: Iterable[Cell]) -> Iterator[Seen]:
    for cell in cells:
        if cell.step_s:
            yield _reached(cell, step_need(model, cell), cell.step_s)
        if cell.prefill_tps and cell.engine not in SPARSE:
            yield _reached(cell, prefill_need(model, cell), cell.prompt / cell.prefill_tps)


def _reached(cell: Cell, need: Need, seconds: float) -> Seen:
    """Engines may multiply integers where weights have fewer bits: that is no rate of bfloat16's."""
    matrix = need.operations / seconds if cell.weights in SIXTEEN else 0.0
    return Seen(cell.engine, need.bytes, Rates(need.bytes / seconds, matrix))


def _best(probed: Sequence[Figure]) -> Ceiling | None:
    """Of all runs of the probes, the best of each way; None where there was none."""
    reading: dict[int, dict[str, float]] = {}
    matrix: dict[str, float] = {}
    for one in probed:
        for size, ways in one["reading"].items():
            _raise(reading.setdefault(int(size), {}), ways)
        _raise(matrix, one["matrix"])
    return Ceiling(reading, matrix) if probed else None


def _raise(best: dict[str, float], rates: Mapping[str, float]) -> None:
    best.update({way: max(rate, best.get(way, 0.0)) for way, rate in rates.items()})


class Limits:
    """The machine's rates: of the probes, and of whoever was faster."""

    def __init__(self, kept: Kept) -> None:
        self.seen = seen(kept)
        self.ceiling = _best(kept.figures("limits", "probes"))

    def rates(self, amount: float) -> Rates | None:
        """For work that moves so many bytes; None where the machine was not probed.

        Engines count like probes: by the amounts that are as large, or of the next smaller probe's size.
        """
        if self.ceiling is None:
            return None
        smallest = max((size for size in self.ceiling.reading if size <= amount), default=0)
        bandwidth = max((one.rates.bandwidth for one in self.seen if one.bytes >= smallest), default=0.0)
        matrix = max((one.rates.matrix for one in self.seen), default=0.0)
        return self.ceiling.rates(amount).at_least(bandwidth, matrix)

    def floor(self, need: Need) -> float | None:
        """Seconds."""
        rates = self.rates(need.bytes)
        return need.seconds(rates) if rates else None
