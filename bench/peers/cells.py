"""cells: the medians of one engine at one prompt length and one number of requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.results import table

Protocol = Literal["same", "equal-bytes", "resident"]


@dataclass(frozen=True, kw_only=True)
class PeerCell:
    """The figures of one cell; None if a figure was not measured. Times are medians in seconds, sizes are bytes.

    engine: a name of `engines.ENGINES`. weights: their dtype: "f16", "bf16", "int8", "int4", "q8_0", "q4_0".
    prompt: tokens of each prompt. requests: concurrent requests. kept: prompt tokens in the cache after prefill.
    protocol: "same" (this many requests for all), "equal-bytes" (as many as fit `cache_bytes`), "resident".
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
    why: str | None = None
    run: str = ""


Column = tuple[str, Callable[[PeerCell], str | None]]


def _with(show: str, field: str, scale: float = 1) -> Callable[[PeerCell], str | None]:
    def cell_text(cell: PeerCell) -> str | None:
        value = getattr(cell, field)
        return None if value is None else show.format(value * scale)

    return cell_text


def _engine(cell: PeerCell) -> str:
    return cell.engine if cell.why is None else f"{cell.engine}: n/a ({cell.why})"


COLUMNS: Sequence[Column] = (
    ("engine", _engine),
    ("weights", lambda cell: cell.weights),
    ("prompt", _with("{:,}", "prompt")),
    ("requests", _with("{}", "requests")),
    ("kept of each prompt", _with("{:,}", "kept")),
    ("prefill tok/s", _with("{:,.0f}", "prefill_tps")),
    ("first token s", _with("{:.2f}", "ttft_s")),
    ("ringkv prefills", _with("{:.2f}x", "ringkv_prefills")),
    ("step ms", _with("{:.1f}", "step_s", 1e3)),
    ("p99 ms", _with("{:.1f}", "itl_p99_s", 1e3)),
    ("decode tok/s", _with("{:,.1f}", "decode_tps")),
    ("ringkv decodes", _with("{:.2f}x", "ringkv_decodes")),
    ("peak memory MB", _with("{:,.0f}", "rss_bytes", 1e-6)),
    ("cache MB", _with("{:,.0f}", "cache_bytes", 1e-6)),
    ("start s", _with("{:.1f}", "start_s")),
    ("same tokens", _with("{}", "agrees")),
)


def shown(cells: Sequence[PeerCell]) -> str:
    """Return the table. "ringkv decodes 2.00x" means twice the tokens per second of the row's engine."""
    columns = [(head, text) for head, text in COLUMNS if any(text(cell) for cell in cells)]
    return table([head for head, _ in columns], [[text(cell) or "" for _, text in columns] for cell in cells])
