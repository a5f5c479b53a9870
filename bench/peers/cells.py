"""Cell: the medians of one engine at one prompt length and one number of requests.

None is a figure that was not measured in this cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Protocol = Literal["same", "equal-bytes", "resident", "needle"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Times are seconds, sizes bytes; every time is a median over rounds and turns.

    engine: a name of `engines.ENGINES`. weights: how they were stored: "f16", "bf16", "int8", "int4", "q8_0", "q4_0".
    prompt: tokens of each prompt. requests: how many decode together. kept: prompt tokens held once a prompt is over.
    protocol: "same" (this many requests for all), "equal-bytes" (as many as `cache_bytes` hold), "resident", "needle".
    prefill_tps, ttft_s: one request alone, from submission to its first token; only where `requests` is 1.
    step_s: one decode step of all requests together, with no prefill going on. decode_tps: requests / step_s.
    itl_p99_s: the 99th percentile of the same steps: what one request waits between two of its tokens.
    rss_bytes: the process's peak since its start; only in "resident", where no process serves two cells or compiles.
    start_s: from starting the process until it takes requests, the fastest of several starts, so that what is compiled
    once is there; only in "resident".
    cache_bytes: keys and values of all requests, with what the engine stages or peaks at; not in "same".
    ringkv_decodes: ringkv's decode_tps over this engine's, in the same turns; above 1, ringkv is faster.
    ringkv_prefills: ringkv's prefill_tps over this engine's, in the same rounds.
    agrees: leading greedy tokens equal to ringkv's with a full cache, of the first 16.
    recall: needles found, a share; only in "needle".
    why: None, or in a few words why there are no figures.
    run: of the table of results; set when the cell is read back.
    """

    engine: str
    prompt: int
    requests: int
    weights: str
    kept: int
    protocol: Protocol = "same"
    prefill_tps: float | None = None
    ttft_s: float | None = None
    step_s: float | None = None
    itl_p99_s: float | None = None
    decode_tps: float | None = None
    rss_bytes: int | None = None
    start_s: float | None = None
    cache_bytes: int | None = None
    ringkv_decodes: float | None = None
    ringkv_prefills: float | None = None
    agrees: int | None = None
    recall: float | None = None
    why: str | None = None
    run: str = ""


def as_figures(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """What the table of results keeps: all that was measured."""
    return [{name: value for name, value in asdict(cell).items() if value not in (None, "")} for cell in cells]


def from_figures(figures: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Cells from the figures of the table; fields that this version does not know are left out."""
    known = {field.name for field in fields(Cell)}
    return [Cell(**{key: value for key, value in figure.items() if key in known}) for figure in figures]
