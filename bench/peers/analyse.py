"""analyse: a journal's records -> cells.

A record has the trial, the engine, the prompt length, the number of requests, and by kind:

    first   first_s     seconds from submitting all prompts to each one's first token
    laps    laps_s      seconds of each decode step of one turn
    output  tokens      a lone request's greedy tokens
    memory  rss_bytes, cache_bytes          start   start_s, facts          failed  why
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from bench.journal import Record
from bench.metrics import quantile
from bench.peers.cells import PeerCell, Protocol
from bench.peers.engines import ENGINES, FULL, REFERENCE, Bits

COMPARED = 16  # leading tokens

Key = tuple[str, int, int]  # engine, prompt, requests


def cells(records: Sequence[Record], protocol: Protocol, bits: Bits) -> list[PeerCell]:
    """Return a cell for each engine, prompt length and number of requests with a measurement or a failure."""
    measured = [record for record in records if record["kind"] != "done"]
    by_key: dict[Key, list[Record]] = defaultdict(list)
    for record in measured:
        by_key[record["engine"], record["prompt"], record["requests"]].append(record)
    order = list(ENGINES)
    unsorted = (_cell(key, mine, measured, protocol, bits) for key, mine in by_key.items())
    return sorted(unsorted, key=lambda cell: (cell.prompt, cell.requests, order.index(cell.engine)))


def cell_of(key: Key, protocol: Protocol, bits: Bits, **figures: Any) -> PeerCell:
    """Return the cell of an engine, a prompt length and a number of requests with these figures."""
    name, prompt, requests = key
    weights, kept = ENGINES[name].weights[bits], ENGINES[name].kept(prompt)
    about = {"weights": weights, "kept": kept, "protocol": protocol}
    return PeerCell(engine=name, prompt=prompt, requests=requests, **figures | about)


def _cell(key: Key, mine: Sequence[Record], records: Sequence[Record], protocol: Protocol, bits: Bits) -> PeerCell:
    name, prompt, requests = key
    figures: dict[str, Any] = {"ringkv_decodes": _ratio(records, key, "laps", "laps_s", protocol != "equal-bytes")}
    if protocol != "same":  # in "same", a process may have served or allocated for more requests before
        figures["cache_bytes"] = max(filter(None, _values(mine, "memory", "cache_bytes")), default=None)
    if protocol == "resident":  # in the others, a process may have compiled its graphs
        figures["rss_bytes"] = max(_values(mine, "memory", "rss_bytes"), default=None)
        figures["start_s"] = min(_values(mine, "start", "start_s"), default=None)
    if laps := [lap for laps in _values(mine, "laps", "laps_s") for lap in laps]:
        step = median(laps)
        figures |= {"step_s": step, "itl_p99_s": quantile(laps, 0.99), "decode_tps": requests / step}
    else:
        figures["why"] = next(iter(_values(mine, "failed", "why")), None)
    if requests == 1:
        if first := [first for (first,) in _values(mine, "first", "first_s")]:
            figures |= {"ttft_s": median(first), "prefill_tps": prompt / median(first)}
        figures["ringkv_prefills"] = _ratio(records, key, "first", "first_s")
        figures["agrees"] = _agrees(records, name, prompt)
    return cell_of(key, protocol, bits, **figures)


def _ratio(records: Iterable[Record], key: Key, kind: str, field: str, alike: bool = True) -> float | None:
    """Return their seconds per token over ours, paired by trial and turn; the median of all pairs.

    alike: only turns in which both had the same number of requests.
    """
    name, prompt, requests = key
    trials: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        matches = record["kind"] == kind and record["prompt"] == prompt
        if matches and (not alike or record["requests"] == requests):
            trials[record["trial"]][record["engine"]].append(median(record[field]) / record["requests"])
    pairs = [
        theirs / ours
        for sides in trials.values()
        for theirs, ours in zip(sides.get(name, ()), sides.get(REFERENCE, ()), strict=False)
    ]
    return median(pairs) if pairs else None


def _agrees(records: Sequence[Record], name: str, prompt: int) -> int | None:
    """Return how many leading tokens equal those of our full cache, the minimum over all trials."""
    outputs: Mapping[str, dict[str, list[int]]] = defaultdict(dict)
    for record in records:
        if record["kind"] == "output" and record["prompt"] == prompt:
            outputs[record["trial"].rpartition("/")[0]][record["engine"]] = record["tokens"][:COMPARED]
    both = [side for side in outputs.values() if {name, FULL} <= side.keys()]
    return min((_common(side[name], side[FULL]) for side in both), default=None)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def _values(records: Iterable[Record], kind: str, field: str) -> list[Any]:
    return [record[field] for record in records if record["kind"] == kind]
