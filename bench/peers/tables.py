"""tables: cells as one Markdown table, without columns that have no figure in any cell."""

from collections.abc import Callable, Sequence

from bench.peers.cells import PeerCell
from bench.results import table

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
    ("needles found", _with("{:.0%}", "recall")),
)


def shown(cells: Sequence[PeerCell]) -> str:
    """Return the table. "ringkv decodes 2.00x" means twice the tokens per second of the row's engine."""
    columns = [(head, text) for head, text in COLUMNS if any(text(cell) for cell in cells)]
    return table([head for head, _ in columns], [[text(cell) or "" for _, text in columns] for cell in cells])
