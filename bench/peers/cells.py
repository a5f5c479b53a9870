"""cells: the medians of one engine at one prompt length and one number of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Protocol = Literal["same", "equal-bytes", "resident", "needle"]


@dataclass(frozen=True, kw_only=True)
class PeerCell:
    """The figures of one cell; None if a figure was not measured. Times are medians in seconds, sizes are bytes.

    engine: a name of `engines.ENGINES`. weights: their dtype: "f16", "bf16", "int8", "int4", "q8_0", "q4_0".
    prompt: tokens of each prompt. requests: concurrent requests. kept: prompt tokens in the cache after prefill.
    protocol: "same" (this many requests for all), "equal-bytes" (as many as fit `cache_bytes`), "resident", "needle".
    prefill_tps, ttft_s: one request alone, from submission to its first token; only if `requests` is 1.
    step_s: one decode step of all requests together, without prefill. decode_tps: requests / step_s.
    itl_p99_s: the 99th percentile of step times, which is the inter-token latency of a request.
    rss_bytes: the process's peak since its start; only in "resident", where no process serves two cells or compiles.
    start_s: from starting the process until it accepts requests; only in "resident". It is the minimum of several
    starts, so that compilation is not counted.
    cache_bytes: keys and values of all requests, including staging and peaks; not in "same".
    ringkv_decodes: ringkv's decode_tps over this engine's, in the same turns; above 1, ringkv is faster.
    ringkv_prefills: ringkv's prefill_tps over this engine's, in the same rounds.
    agrees: leading greedy tokens equal to those of ringkv's full cache, of the first 16.
    recall: share of needles found; only in "needle".
    why: the reason for missing figures, or None.
    run: the run in the table of results; set when the cell is read back.
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


def as_figures(cells: Sequence[PeerCell]) -> list[dict[str, Any]]:
    """Return the measured fields of each cell, for the table of results."""
    return [{name: value for name, value in asdict(cell).items() if value not in (None, "")} for cell in cells]


def from_figures(figures: Sequence[Mapping[str, Any]]) -> list[PeerCell]:
    """Return cells from figures of the table; fields unknown to this version are dropped."""
    known = {field.name for field in fields(PeerCell)}
    return [PeerCell(**{key: value for key, value in figure.items() if key in known}) for figure in figures]
