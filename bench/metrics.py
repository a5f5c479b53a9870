"""metrics: the unit of every value that a benchmark reports, and the statistic taken over its repetitions.

A figure is a mapping. The fields named here are measurements; all others are columns that say what was measured.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple


class Metric(NamedTuple):
    unit: str
    statistic: str = "median"


SECONDS, BYTES, RATIO, SHARE = Metric("s"), Metric("B", "once"), Metric("ratio"), Metric("share", "mean")
LATE, LARGEST = Metric("s", "p99"), Metric("B", "max")
COUNTED, FASTEST = Metric("requests", "once"), Metric("s", "min")

METRICS: Mapping[str, Metric] = {
    # peers
    **dict.fromkeys(("prefill_tps", "decode_tps"), Metric("tokens/s")),
    **dict.fromkeys(("ttft_s", "step_s"), SECONDS),
    "itl_p99_s": LATE,
    **dict.fromkeys(("rss_bytes", "cache_bytes"), LARGEST),
    "start_s": FASTEST,
    **dict.fromkeys(("ringkv_decodes", "ringkv_prefills"), RATIO),
    "agrees": Metric("tokens", "min"),
    # beside
    **dict.fromkeys(("prefill_before_s", "prefill_now_s", "step_before_s", "step_now_s"), SECONDS),
    **dict.fromkeys(("prefill_ratio", "step_ratio"), RATIO),
    # speculation
    **dict.fromkeys(("without_s", "with_s"), SECONDS),
    "speedup": RATIO,
    "accepted": SHARE,
    "per_pass": Metric("tokens", "mean"),
    # startup
    **dict.fromkeys(("first_s", "whole_s", "cpu_s"), SECONDS),
    "best_s": FASTEST,
    # perplexity
    "bits": Metric("bits", "once"),
    "perplexity": Metric("perplexity", "mean"),
    "over_16_bits": Metric("share", "once"),
    # traffic; `ttft_s` is its median
    "tokens_per_s": Metric("tokens/s"),
    "goodput": Metric("requests/s", "mean"),
    "good_share": SHARE,
    "tpot_s": SECONDS,
    **dict.fromkeys(("ttft_p99_s", "tpot_p99_s", "gap_p99_s"), LATE),
    "gap_s": Metric("s", "max"),
    **dict.fromkeys(("served_s", "clients_cpu_s"), SECONDS),
    # kill, overload, traffic
    **{f"{how}_requests": COUNTED for how in ("sent", "failed", "cut", "hung", "drained", "lost")},
    **dict.fromkeys(("error_s", "slowest_back_s"), Metric("s", "max")),
    **dict.fromkeys(("ready_s", "back_s", "chunk_s"), SECONDS),
    "more_files": Metric("open files", "once"),
    "sustained_rate": Metric("requests/s", "mean"),
    "refused_share": SHARE,
    **dict.fromkeys(("http_bytes", "engine_bytes", "more_bytes", "peak_bytes"), LARGEST),
    # strangers
    "seconds": SECONDS,
    **dict.fromkeys(("slowest_s", "gap_s", "health_s", "allowed_s"), Metric("s", "max")),
    **{f"bodies_{how}": Metric("bodies", "once") for how in ("served", "refused", "cut")},
    # fuzz, clients
    "cases": Metric("cases", "once"),
    "findings": Metric("findings", "once"),
    "fuzzed_s": Metric("s", "once"),
    "passed": Metric("yes is 1", "once"),
    # device
    "free": BYTES,
    "rate": Metric("B/s or FLOP/s", "max"),
    **dict.fromkeys(("s", "forward_s", "sample_s", "compress_s"), SECONDS),
    "built_s": Metric("s", "once"),
    "need_bytes": BYTES,
    "operations": Metric("FLOP", "once"),
}


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed; None of none."""
    return sorted(values)[max(1, ceil(share * len(values))) - 1] if values else None
