"""What users may still type although it was removed, with what to use instead and the measurement that decided it.

A remedy continues the sentence "SETTING VALUE was removed; ...", or of a setting "SETTING was removed; ...". It names
settings with underscores; the command line writes them as flags. Whoever removes a value or a setting adds its row
here, and nothing else: these read the tables.

    WITHDRAWN_VALUES     `base.checks.refusal`, which every check calls that a value is one of several
    WITHDRAWN_SETTINGS   `LLM(...)`, `server.refusals` for fields of requests, `cli.foreign_flags.hint` for flags
"""

from collections.abc import Mapping

_INSTEAD_OF_FP8 = (
    "choose int8, which decodes 27% more tokens per second (SmolLM2-135M, AVX-512), loses less, and takes 3% more bytes"
)
WITHDRAWN_VALUES: Mapping[tuple[str, str], str] = {
    ("kv_format", "fp8"): _INSTEAD_OF_FP8,
    ("kv_format", "fp8_e4m3"): _INSTEAD_OF_FP8,
    ("kv_format", "fp8_e5m2"): _INSTEAD_OF_FP8,
    ("kv_format", "turbo4"): (
        "choose int4, which decodes 11% more tokens per second (Llama-3.1-8B, H200), loses less, takes 2% more bytes"
    ),
    ("kv_heads", "adaptive"): (
        "choose profile, which scored 90.6 on 16 RULER prompts of 4k whose question came after half was kept, and "
        "adaptive 57.8; or equal, which lost 0.6 points on 124 LongBench prompts of which a quarter was kept, and "
        "adaptive 1.6 (Qwen2.5-Coder-1.5B)"
    ),
    ("kv_heads", "pyramid"): (
        "choose equal, which lost 0.6 points on 124 LongBench prompts of which a quarter was kept, and pyramid 3.4 "
        "(Qwen2.5-Coder-1.5B)"
    ),
    ("kv_policy", "h2o"): (
        "choose snapstream, whose ring solved 47% of 30 GSM8K problems in 192 entries, and h2o 23% (Qwen2.5-Coder-1.5B)"
    ),
    ("kv_policy", "reselect"): (
        "choose snapstream, whose ring solved 47% of 30 GSM8K problems in 192 entries, and reselect 33% "
        "(Qwen2.5-Coder-1.5B)"
    ),
    ("kv_policy", "triattention"): (
        "choose snapstream, whose ring solved 47.5% of 40 GSM8K problems in 192 entries, and triattention 30% "
        "(Qwen2.5-Coder-1.5B)"
    ),
}
"""Remedies by setting and value."""

WITHDRAWN_SETTINGS: Mapping[str, str] = {
    "kv_unread": (
        "leave it out: with the estimate a quarter scored 73.3 on 30 questions about 140 UUIDs, and without it 70.0, "
        "which is within the interval (Qwen2.5-Coder-1.5B), and a step took 5% longer (SmolLM2-135M, Intel with AMX)"
    ),
    "kv_digest": (
        "leave it out: pages are selected by the mean of distances, as in ArkVale's paper, and no study has found "
        "bounds of keys better"
    ),
    "kv_read": (
        "choose kv_policy arkvale, which keeps every token and reads some pages, or a smaller kv_budget: no study has "
        "found a gain"
    ),
    "kv_prefetch": (
        "leave it out: with it decode steps took 12% (Qwen2.5-Coder-1.5B) to 15% (SmolLM2-135M) longer if the files of "
        "kv_tier were in memory (Intel with AMX)"
    ),
    "kv_pages_by": (
        "leave it out: each key-value head selects its own pages, which hold 0.3 to 0.7 points more of the attention "
        "than pages selected for all heads of a layer (SmolLM2-135M and Qwen2.5-Coder-1.5B)"
    ),
    "kv_weigh": (
        "leave it out: votes without it lost 0.6 points on 124 LongBench prompts, and votes that values weighed 0.7, "
        "which is within the interval (Qwen2.5-Coder-1.5B, a quarter kept)"
    ),
    "kv_reading": (
        "leave it out: scissorhands evicts the entries with the most low weights, and no study found another reading "
        "better; kv_policy snapstream solved 47% of 30 GSM8K problems in 192 entries, and scissorhands 33% "
        "(Qwen2.5-Coder-1.5B)"
    ),
    "kv_domain": (
        "leave it out: votes that are normalised over the candidates scored 30.7 on 97 LongBench prompts, and those "
        "over the causal row 30.4, which is within the interval (Qwen2.5-Coder-1.5B, a quarter kept)"
    ),
    "kv_groups": (
        "leave it out: the maximum over query heads scored 31.4 on 97 LongBench prompts, and their mean 30.4, which is "
        "within the interval (Qwen2.5-Coder-1.5B, a quarter kept)"
    ),
    "profile": "wrap torch's profiler around `ringkv.LLM`, as CONTRIBUTING.md shows",
}
"""Remedies by setting."""
