"""metrics: the unit of every value that a benchmark reports, and the statistic taken over its repetitions.

A figure is a mapping. The fields named here are measurements; all others are columns that say what was measured.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    unit: str
    statistic: str = "median"


SECONDS, BYTES, RATIO, SHARE = Metric("s"), Metric("B", "once"), Metric("ratio"), Metric("share", "mean")

METRICS: Mapping[str, Metric] = {
    # peers
    "prefill_tps": Metric("tokens/s"),
    "ttft_s": SECONDS,
    "step_s": SECONDS,
    "itl_p99_s": Metric("s", "p99"),
    "decode_tps": Metric("tokens/s"),
    "rss_bytes": Metric("B", "max"),
    "cache_bytes": Metric("B", "max"),
    "start_s": Metric("s", "min"),
    "ringkv_decodes": RATIO,
    "ringkv_prefills": RATIO,
    "agrees": Metric("tokens", "min"),
    "recall": SHARE,
    # limits
    "rate": Metric("B/s or FLOP/s", "max"),
    "seconds": SECONDS,
    "need_bytes": BYTES,
    "need_operations": Metric("FLOP", "once"),
    "bandwidth": Metric("B/s", "max"),
    "matrix": Metric("FLOP/s", "max"),
    "share": Metric("share"),
    "score_s": SECONDS,
    "compress_s": SECONDS,
    "insert_s": SECONDS,
    "of_prefill": Metric("share"),
    "per_1k_s": SECONDS,
    "step_bytes": BYTES,
    "over_shortest": RATIO,
    "hits": SHARE,
    "over_kept": RATIO,
    "over_equal": RATIO,
    # flat: the whole run, then each stage
    **{f"{part}_bytes": BYTES for part in ("weights", "slots", "staging", "early", "late", "remainder", "growth")},
    "peak_bytes": Metric("B", "max"),
    **{f"{part}_bytes": BYTES for part in ("total", "own", "files")},
    # threads, waiting, startup, graphs, concurrent
    "alone_s": SECONDS,
    "served_s": SECONDS,
    "loss": Metric("share"),
    "http_cpu_s": SECONDS,
    "clients_cpu_s": SECONDS,
    "tokens_per_s": Metric("tokens/s"),
    "idle_s": SECONDS,
    "busy_s": SECONDS,
    "first_s": SECONDS,
    "best_s": Metric("s", "min"),
    "whole_s": SECONDS,
    "cpu_s": SECONDS,
    "build_s": Metric("s", "once"),
    "prefill_s": SECONDS,
    # turns
    "first_right": SHARE,
    "second_right": SHARE,
    "read": Metric("tokens", "mean"),
    "sooner": RATIO,
    "same": SHARE,
    # structured
    **{result: Metric("documents", "once") for result in ("fits", "shortened", "refused", "WRONG")},
    "fitting": Metric("share", "once"),
    "without_s": SECONDS,
    "with_s": SECONDS,
    "more": Metric("share"),
    "more_error": Metric("share", "standard error"),
    "divergence": Metric("nats", "mean"),
    # slice
    "distinct": Metric("experts", "mean"),
    # hybrid
    "error": Metric("logit", "max"),
    # speculation; `without_s` and `with_s` are seconds per token
    "speedup": RATIO,
    "speedup_median": RATIO,
    "accepted": SHARE,
    "per_pass": Metric("tokens", "mean"),
    # kv_format
    "attend_s": SECONDS,
    "attend_ratio": RATIO,
    "entry_bytes": BYTES,
    # beside
    "short_before_s": SECONDS,
    "short_now_s": SECONDS,
    "short_ratio": RATIO,
    "within_share": SHARE,
    "prefill_before_s": SECONDS,
    "prefill_now_s": SECONDS,
    "step_process_s": SECONDS,
    "step_ranks_s": SECONDS,
    "prefill_process_s": SECONDS,
    "prefill_ranks_s": SECONDS,
    "memory_s": SECONDS,
    "gloo_s": SECONDS,
    "exchange_ratio": RATIO,
    "part_bytes": BYTES,
    "loading_bytes": Metric("B", "max"),
    "loading_ratio": RATIO,
    "prefill_exchange_share": SHARE,
    "decode_exchange_share": SHARE,
    "equal_answers": Metric("answers", "once"),
    "equal_tokens": Metric("tokens", "once"),
    "step_before_s": SECONDS,
    "step_now_s": SECONDS,
    "prefill_ratio": RATIO,
    "step_ratio": RATIO,
    # perplexity
    "bits": Metric("bits", "once"),
    "perplexity": Metric("perplexity", "mean"),
    "over_16_bits": Metric("share", "once"),
    # kill
    "failed_requests": Metric("requests", "once"),
    "cut_requests": Metric("requests", "once"),
    "hung_requests": Metric("requests", "once"),
    "drained_requests": Metric("requests", "once"),
    "lost_requests": Metric("requests", "once"),
    "error_s": Metric("s", "max"),
    "ready_s": SECONDS,
    "back_s": SECONDS,
    "slowest_back_s": Metric("s", "max"),
    "more_files": Metric("open files", "once"),
    # roles; "drained_requests" finished
    "whole_both_s": SECONDS,
    "whole_apart_s": SECONDS,
    "itl_quiet_p99_s": Metric("s", "p99"),
    "itl_reading_p99_s": Metric("s", "p99"),
    "itl_p99_ratio": RATIO,
    "itl_quiet_s": SECONDS,
    "itl_reading_s": SECONDS,
    "longest_gap_s": Metric("s", "max"),
    "wrong_transfers": Metric("transfers", "once"),
    "most_bytes": Metric("B", "max"),
    "transfer_s": SECONDS,
    # overload
    "sustained_rate": Metric("requests/s", "mean"),
    "sent_requests": Metric("requests", "once"),
    "refused_share": SHARE,
    "chunk_s": SECONDS,
    "http_bytes": Metric("B", "max"),
    "engine_bytes": Metric("B", "max"),
    # overhead: CPU time
    "http_token_s": SECONDS,
    "engine_token_s": SECONDS,
    "http_request_s": SECONDS,
    # traffic; `ttft_s` is its median
    "goodput": Metric("requests/s", "mean"),
    "good_share": SHARE,
    "ttft_p99_s": Metric("s", "p99"),
    "tpot_s": SECONDS,
    "tpot_p99_s": Metric("s", "p99"),
    "gap_s": Metric("s", "max"),
    "gap_p99_s": Metric("s", "p99"),
    # fuzz
    "cases": Metric("cases", "once"),
    "findings": Metric("findings", "once"),
    "fuzzed_s": Metric("s", "once"),
    # strangers
    **{f"bodies_{how}": Metric("bodies", "once") for how in ("served", "refused", "cut")},
    # clients
    "passed": Metric("yes is 1", "once"),
    # device
    "free": BYTES,
    "s": SECONDS,
    "slowest_s": Metric("s", "max"),
    "forward_s": SECONDS,
    "sample_s": SECONDS,
    "built_s": Metric("s", "once"),
    "operations": Metric("FLOP", "once"),
    # selections; pages of a head and a step
    **dict.fromkeys(("attention", "attention_of_one", "least", "least_of_one", "found"), SHARE),
    **dict.fromkeys(("chosen", "new", "wasted", "recalled_pages", "prefetched_pages"), Metric("pages", "mean")),
}
